"""The steps of a run, round by round, from the agreed configuration alone: the method's own code submits them, and none
is carried out.

Every party can so derive what the others may ask of it. What a round does depends on the configuration, the seed and
the clients' numbers of rows. It depends on losses where a method waits and then seats other leaders; such a round is
rehearsed with these losses, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch

from headwater.core import serialization
from headwater.core.federation import SERVER, Federation, Located
from headwater.core.ledger import Ledger
from headwater.core.membership import Membership
from headwater.core.sampling import participants
from headwater.core.serialization import ValueInfo
from headwater.core.values import names_in
from headwater.data.base import Examples
from headwater.deploy.agreement import Agreement, deployed_experiment, empty_split
from headwater.deploy.steps import Choice, Move, Step
from headwater.engines.jobs import Job, Ref
from headwater.errors import ConfigError, UserError, said
from headwater.planning.rehearsal import FREE, RehearsalEngine, Unforeseen, Value, Work
from headwater.planning.trials import UNKNOWN
from headwater.tasks.average import initial
from headwater.tasks.cost import ITSELF, Cost
from headwater.tasks.privacy import privacy_of
from headwater.tasks.task import TaskContext
from headwater.training.evaluation import submit_evaluation, tests_for
from headwater.training.experiment import Experiment
from headwater.training.finish import export
from headwater.training.opening import admit, open_federation, run_context

MOST_WAITS = 1000  # of a method in one round; after so many nothing is lost any more, so that its loops end


class StepRecorder(RehearsalEngine):
    """Records the steps that a method submits, and the bytes of each value.

    Args:
        sector_of: client → its sector.
        sector: values of this sector and its clients are lost from `lost_from` on.

    Attributes:
        steps: in the order of the method.
        sizes: bytes of each value by name; None if only training can tell.
        lost_from: number of the wait at which losses begin.
        waits: how often the method has waited to see what was lost.
    """

    losing = True  # as in a deployed federation

    def __init__(self, sector_of: Mapping[str, str], sector: str | None) -> None:
        super().__init__()
        self._sector_of, self._sector = sector_of, sector
        self.begin(inf)

    def begin(self, lost_from: float) -> None:
        """Forget the steps recorded so far."""
        self.steps: list[Step] = []
        self.sizes: dict[str, int | None] = {}
        self.lost_from, self.waits, self._steps_at_wait = lost_from, 0, -1

    def submit(self, *jobs: Job) -> None:
        self.steps += jobs
        super().submit(*jobs)
        for job in jobs:
            self._weigh(job.name)

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        self.steps.append(Move(ref, home, name, tiers))
        self._alias(ref, name)

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self.steps.append(Choice(new, old, name))
        self._alias(new, name)

    def _alias(self, ref: Ref, name: str) -> None:
        value = self._values[ref.key]
        if ref.part:
            outline = self._outline(ref)
            value = Value(outline, None if outline is UNKNOWN else serialization.info(outline), 0)
        self._put(name, "", value)
        self._weigh(name)

    def info(self, ref: Ref) -> ValueInfo | None:
        if self._steps_at_wait != len(self.steps):  # questions without a step in between belong to one wait
            self._steps_at_wait, self.waits = len(self.steps), self.waits + 1
        if self.lost_from < self.waits < MOST_WAITS and self._sector_of.get(ref.home, ref.home) == self._sector:
            return None
        return super().info(ref)

    def _weigh(self, name: str) -> None:
        info = self._values[name].info
        self.sizes[name] = None if info is None else info.bytes

    def _rehearse(self, job: Job, group: int) -> tuple[Work, Value]:
        """Without costs, and without trying tasks that do not declare what they return."""
        values, inputs, ctx = self._inputs_of(job)
        outline = self._result(job, ctx, inputs)
        info = None if outline is UNKNOWN else serialization.info(outline)
        untrained = job.phase in FREE and all(value.job is not None for value in values.values())
        return Work(job, Cost()), Value(outline, info, 0, *((job, values) if untrained else ()))

    def _result(self, job: Job, ctx: TaskContext, inputs: dict[str, Any]) -> Any:
        returns = getattr(job.task, "returns", None)
        if isinstance(returns, str) and returns != ITSELF:
            return inputs[returns]
        declared = job.task if returns == ITSELF else returns
        try:
            return UNKNOWN if declared is None else declared(ctx, **inputs)
        except Exception:  # it depends on rows that are not here, or on values that only training gives
            return UNKNOWN


@dataclass(frozen=True)
class RehearsedRound:
    """The steps of one round.

    Args:
        number: of the round; 0 comes before the first, and one more than the configuration's is measured after the end.
        ways: the steps without losses, then with losses of leaders at each point where the method waits.
        sizes: bytes of each value by name, without losses; None if only training can tell.
        kept: names of the values that later rounds use.
        entry: what clients that join with this round get before it; its steps count as steps of round 0.
    """

    number: int
    ways: tuple[tuple[Step, ...], ...]
    sizes: Mapping[str, int | None]
    kept: frozenset[str] = frozenset()
    entry: RehearsedRound | None = None


class RehearsedRun:
    """The rounds of a run. They are rehearsed in order, each when it is first needed.

    Args:
        agreement: the agreed configuration.
        members: number of rows by client, and who joins later.
        sector: the sector in which leaders may be lost; None for the server.
    """

    def __init__(self, agreement: Agreement, members: Membership, sector: str | None) -> None:
        self.experiment = _rehearsal_experiment(agreement, members.first)
        self._members, self._sector = members, sector
        self._next = 0
        self._fed: Federation
        self._state: Any
        self._tests: Located

    def follow(self, members: Membership) -> None:
        """Take in clients that have joined. Rounds that were rehearsed without them are rehearsed again."""
        more = members.joined[len(self._members.joined) :]
        self._members = members
        if any(each.round < self._next for each in more):
            self._next = 0

    @property
    def rounds(self) -> int:
        return self.experiment.config.rounds

    def round(self, number: int) -> RehearsedRound:
        """The steps of a round.

        Raises:
            ConfigError: the method cannot be rehearsed.
        """
        try:
            if number < self._next or number == 0:
                self._next = 0
            while self._next < number:
                self._rehearse(self._next)
            return self._rehearse(number)
        except Unforeseen:
            self._next = 0
            raise ConfigError(
                f"{self.experiment.config.method} decides by values that only training gives (it reads them in a "
                "round), so no party could tell beforehand what it will be asked; such a method can be simulated, but "
                "not deployed: decide inside a task at the server"
            ) from None
        except UserError:
            self._next = 0
            raise
        except Exception as error:
            self._next = 0
            raise ConfigError(
                f"{self.experiment.config.method} cannot be rehearsed, so no party could tell beforehand what it will "
                f"be asked: {said(error)}"
            ) from error

    def _rehearse(self, number: int) -> RehearsedRound:
        """Rehearse the next round and go on to the one after it."""
        entry = None
        if number == 0:
            found = self._open()
        else:
            entry = self._enter(number)
            state, ways = self._submit(number, inf), []
            if self._sector and self._engine.waits:
                ways = [self._way(number, lost_from) for lost_from in range(self._engine.waits)]
                state = self._submit(number, inf)  # last, since values of one name replace each other
            self._state = state
            found = RehearsedRound(number, (tuple(self._engine.steps), *ways), self._engine.sizes)
        self._next = number + 1
        return replace(found, kept=self._tidy(), entry=entry)

    def _tidy(self) -> frozenset[str]:
        """Drop all values but those that later rounds use, and return their names."""
        session, kept = self._fed.session, names_in([self._state, self._tests])
        session.release(kept)
        session.opened.clear()
        session.ledger = Ledger()
        self._engine.works.clear()
        self._engine.finish(list(self._engine._infos))
        return frozenset(kept)

    def _enter(self, number: int) -> RehearsedRound | None:
        """What clients get that join with this round; None if nobody does."""
        self._engine.begin(inf)
        whole = self._fed
        admitted = admit(self.experiment, whole, self._state, self._tests, self._members.joined, number)
        self._fed, self._state, self._tests = admitted
        if self._fed is whole:
            return None
        steps, clients = tuple(self._engine.steps), self._fed.tree.sector_of
        if any(isinstance(step, Move) and step.ref.home in clients for step in steps):
            raise ConfigError(
                f"{self.experiment.config.method} collects something from all clients before round 1, so a client that "
                "comes later cannot take part"
            )
        return RehearsedRound(0, (steps,), self._engine.sizes, self._tidy())

    def _way(self, number: int, lost_from: int) -> tuple[Step, ...]:
        self._submit(number, lost_from)
        return tuple(self._engine.steps)

    def _open(self) -> RehearsedRound:
        made, engine = self.experiment, StepRecorder(self.experiment.tree.sector_of, self._sector)
        context = run_context(made)
        engine.start(context)
        self._engine, self._own_tests = engine, made.config.partition.local_test > 0
        fed = self._fed = open_federation(made, engine, context)
        fed.session.bound = made.config.privacy.clip if made.config.privacy.quantile else 0.0
        self._state = made.method.init(fed, fed.run(initial, at=SERVER, arch=made.model.name))
        self._tests = tests_for(fed, self._state, self._own_tests)
        return RehearsedRound(0, (tuple(engine.steps),), engine.sizes)

    def _submit(self, number: int, lost_from: float) -> Any:
        """Submit a round as the training loop does, and return the state after it."""
        config, tree, state = self.experiment.config, self._fed.tree, self._state
        self._engine.begin(lost_from)
        last, share = config.rounds, config.partition.participation
        taking_part = participants(tree, share, config.seed, number) if number <= last else tree.holders
        fed = self._fed.begin(number, taking_part)
        if number <= last:
            state = fed.restore_lost(state, self.experiment.after_round(fed, state))
        if number >= last or number % config.eval_every == 0:
            each = number >= last and not privacy_of(config.privacy).active
            submit_evaluation(fed, state, self._tests, self._own_tests, each)
        if number >= last:
            export(fed, state)
        return state


def _rehearsal_experiment(agreement: Agreement, census: Mapping[str, int]) -> Experiment:
    """The experiment as the server has it, with zeros that take no memory in place of the public sets."""
    split, rows = empty_split(agreement), agreement.public

    def inputs(name: str) -> torch.Tensor:
        return split.reference.new_zeros(()).expand(rows.get(name, 0), *agreement.shape)

    def labels(name: str) -> torch.Tensor:
        return torch.zeros((), dtype=torch.int64).expand(rows.get(name, 0))

    public: dict[str, Any] = {name: Examples(inputs(name), labels(name)) for name in ("validation", "test")}
    labelled = labels("reference_labels") if rows.get("reference_labels") else None
    split = replace(split, **public, reference=inputs("reference"), reference_labels=labelled)
    return deployed_experiment(agreement, split, census)
