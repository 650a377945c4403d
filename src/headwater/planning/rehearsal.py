"""Runs a method's rounds without its tasks: the method's own code submits every task, and none is executed.

Every value is an outline: its structure and the shapes of its tensors, as its task declares them. So it is known, for
any method, which client trains, leads and teaches, on how many samples, and how many bytes each move takes. A value
that the method reads is computed, if this needs no training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headwater.core import serialization
from headwater.core.federation import SERVER
from headwater.core.ledger import TIERS
from headwater.core.sampling import participants
from headwater.core.serialization import ValueInfo, part_of
from headwater.core.values import names_in
from headwater.engines.base import Done, Files, Infos
from headwater.engines.execution import execute
from headwater.engines.jobs import EVERY, Job, Ref, refs_in, resolve
from headwater.planning.planned_traffic import PlannedTraffic, Tiers, of_round, so_far
from headwater.planning.trials import UNKNOWN, Trials
from headwater.tasks.average import initial
from headwater.tasks.cost import ITSELF, Cost
from headwater.tasks.task import RunContext, TaskContext
from headwater.training.evaluation import submit_evaluation, tests_for
from headwater.training.experiment import Experiment
from headwater.training.finish import export
from headwater.training.opening import charge_preparation, open_federation, run_context

JOBS = 20_000  # most client tasks that are rehearsed; a longer run is extrapolated from its first rounds
LEAST = 3  # rounds that are rehearsed for any number of clients: the first round often differs from the others
FREE = ("average", "evaluate")  # phases whose tasks count as cheap unless they declare a cost


class Unforeseen(Exception):  # noqa: N818 (a signal, not an error)
    """Raised when the content of a value is needed that only training can produce."""


@dataclass(frozen=True)
class Value:
    """Description of a value that has not been computed.

    Args:
        outline: its outline, or UNKNOWN.
        info: its size; None if that is not known.
        work: index of the task that produces it.
        job: the job that produces it, if it can be computed without training.
        inputs: the input values of this job.
    """

    outline: Any
    info: ValueInfo | None
    work: int
    job: Job | None = None
    inputs: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """One task of a run.

    Args:
        job: the task, where it runs and its inputs.
        cost: how much it computes.
        after: indices of the tasks whose results it needs.
        models: models that it needs in memory at the same time.
        group: index of the first task of the group that it is executed in.
    """

    job: Job
    cost: Cost
    after: tuple[int, ...] = ()
    models: int = 0
    group: int = -1


class RehearsalEngine:
    """Engine that records jobs and moves, and executes none of them.

    Attributes:
        works: all jobs in the order of submission.
        unknown: tasks whose results were moved and whose size is not known.
        seconds: time spent on determining costs and sizes, which a run does not need.
    """

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self.works: list[Work] = []
        self.unknown: set[str] = set()
        self.seconds = 0.0
        self._values: dict[str, Value] = {}  # by key of a Ref
        self._members: dict[str, list[str]] = {}  # by name
        self._infos: dict[str, Infos] = {}  # of names that `finish` has not been asked for yet
        self._contexts: dict[str, TaskContext] = {}  # by home

    def start(self, context: RunContext) -> None:
        self.context, self.trials = context, Trials(context)

    def submit(self, *jobs: Job) -> None:
        begun, first = time.process_time(), len(self.works)
        for job in jobs:
            work, value = self._rehearse(job, first)
            self.works.append(work)
            self._put(job.name, job.node if len(jobs) > 1 else "", value)
        self.seconds += time.process_time() - begun

    def _rehearse(self, job: Job, group: int) -> tuple[Work, Value]:
        values, inputs, ctx = self._inputs_of(job)
        cost, outline = self._cost(job, ctx, inputs), self._result(job, ctx, inputs)
        needed: Iterable[Ref] = job.refs()
        if streamed := getattr(job.task, "streaming", ()):
            needed = refs_in([item for name, item in job.inputs.items() if name not in streamed])
        after = tuple(sorted({value.work for value in values.values()}))
        info = None if outline is UNKNOWN else serialization.info(outline)
        untrained = job.phase in FREE and all(value.job is not None for value in values.values())
        value = Value(outline, info, len(self.works), *((job, values) if untrained else ()))
        return Work(job, cost, after, sum(map(self._models, needed)), group), value

    def _inputs_of(self, job: Job) -> tuple[dict[str, Value], dict[str, Any], TaskContext]:
        """The values that a job names, its inputs with outlines in their place, and the context of its home."""
        values = {ref.key: self._values[ref.key] for ref in job.refs()}
        inputs = {
            name: item if name in job.plain else resolve(item, self._outline) for name, item in job.inputs.items()
        }
        ctx = self._contexts.get(job.home)
        if ctx is None:
            ctx = self._contexts[job.home] = TaskContext(self.context, job.home, ())
        return values, inputs, ctx

    def _cost(self, job: Job, ctx: TaskContext, inputs: dict[str, Any]) -> Cost:
        declared = getattr(job.task, "cost", None)
        cost: Cost | None = _declared(declared, ctx, inputs, Cost(known=False)) if callable(declared) else declared
        return cost or Cost(known=job.phase in FREE)

    def _result(self, job: Job, ctx: TaskContext, inputs: dict[str, Any]) -> Any:
        returns = getattr(job.task, "returns", None)
        if returns is None:
            return self.trials.outline(job, inputs, self._outline)
        if returns == ITSELF:
            return _declared(job.task, ctx, inputs, UNKNOWN)
        return inputs[returns] if isinstance(returns, str) else _declared(returns, ctx, inputs, UNKNOWN)

    def _outline(self, ref: Ref) -> Any:
        outline = self._values[ref.key].outline
        return outline if outline is UNKNOWN else part_of(outline, ref.part)

    def _models(self, ref: Ref) -> int:
        value = self._values[ref.key]
        return (
            0
            if value.info is None
            else serialization.info(self._outline(ref)).models
            if ref.part
            else value.info.models
        )

    def _put(self, name: str, member: str, value: Value) -> None:
        self._values[Ref(name, "", (), member).key] = value
        self._members.setdefault(name, []).append(member)
        if member:
            self._infos.setdefault(name, {})[member] = value.info  # type: ignore[index]
        else:
            self._infos[name] = value.info

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        every = ref.member == EVERY
        for member in self._members.get(ref.name, [""]) if every else [ref.member]:
            source = replace(ref, member=member)
            value = self._values[source.key]
            if value.info is None and tiers:
                self.unknown.add(self.works[value.work].job.title)
            elif ref.part:
                outline = self._outline(source)
                value = Value(outline, serialization.info(outline), value.work)
            self._put(name, member if every else "", value)

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self.move(new, new.home, name)

    def info(self, ref: Ref) -> ValueInfo | None:
        return self._values[ref.key].info or ValueInfo(0, 0, "value")  # nothing is lost in a rehearsal

    def read(self, ref: Ref) -> Any:
        value = self._values[ref.key]
        if value.job is None:
            raise Unforeseen
        return part_of(self._compute(value), ref.part)

    def _compute(self, value: Value) -> Any:
        job, inputs = value.job, value.inputs
        assert job is not None
        result, _ = execute(
            job, self.context, lambda ref: part_of(self._compute(inputs[ref.key]), ref.part), lambda ref: None
        )
        return result

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            for member in self._members.pop(name, ()):
                self._values.pop(Ref(name, "", (), member).key, None)

    def trim(self, members: Mapping[str, Collection[str]]) -> None: ...

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        return {name: self._infos.pop(name, None) for name in names}

    def save(self, names: Iterable[str], directory: Path) -> Files:
        raise Unforeseen

    def load(self, files: Files, directory: Path) -> None:
        raise Unforeseen

    def close(self) -> None:
        self._values.clear()


def _declared(function: Callable[..., Any], ctx: TaskContext, inputs: dict[str, Any], otherwise: Any) -> Any:
    """Call a declaration with these inputs. Returns `otherwise` if it fails and one of the inputs is UNKNOWN."""
    try:
        return function(ctx, **inputs)
    except Exception:
        if any(item is UNKNOWN for item in inputs.values()):
            return otherwise
        raise


@dataclass(frozen=True)
class Rehearsal:
    """What a method did in the rounds that were rehearsed.

    Args:
        works: all tasks in the order of submission; those of round 0 prepare the run.
        rounds: how many rounds were rehearsed.
        kept: values that the method keeps from one round to the next.
        seconds: time to submit one round.
        traffic: what the run moves; None if the size of a moved value is not known.
        unknown: the tasks that such values come from.
    """

    works: tuple[Work, ...]
    rounds: int
    kept: int
    seconds: float
    traffic: PlannedTraffic | None
    unknown: tuple[str, ...]


def rehearse(experiment: Experiment, jobs: int | None = None) -> Rehearsal | None:
    """Rehearse a run; None if the method reads a value that only training can give.

    Args:
        experiment: the run.
        jobs: most client tasks that are rehearsed; `JOBS` if left out.
    """
    config, tree = experiment.config, experiment.tree
    share, seed = config.partition.participation, config.seed
    active = max(1, len(participants(tree, share, seed, 1)))
    rounds = min(config.rounds, max(LEAST, (jobs or JOBS) // active))
    own_tests, engine, context = config.partition.local_test > 0, RehearsalEngine(), run_context(experiment)
    engine.start(context)
    fed = open_federation(experiment, engine, context)
    ledger = fed.session.ledger
    charge_preparation(experiment, fed)
    moved: list[Tiers] = []
    waits: list[dict[str, int]] = []
    try:
        state = experiment.method.init(fed, fed.run(initial, at=SERVER, arch=experiment.model.name))
        tests = tests_for(fed, state, own_tests)
        fed.keep([state, tests])
        begun, aside = time.process_time(), engine.seconds
        for number in range(1, rounds + 1):
            fed = fed.begin(number, participants(tree, share, seed, number))
            state = experiment.after_round(fed, state)
            if number % config.eval_every == 0 or number == config.rounds:
                submit_evaluation(fed, state, tests, own_tests)
            before = so_far(ledger)
            fed.keep([state, tests])
            moved.append(of_round(ledger, number, before))
            waits.append(ledger.waits.get(number, dict.fromkeys(TIERS, 0)))
        if fed.session.secure.on:
            export(fed, state)
    except Unforeseen:
        return None
    seconds = (time.process_time() - begun - (engine.seconds - aside)) / rounds
    exact = rounds == config.rounds and engine.trials.exact and not config.faults.dropout
    traffic = PlannedTraffic(tuple(moved), config.rounds, ledger.summary()["setup"], tuple(waits), exact)
    return Rehearsal(
        tuple(engine.works),
        rounds,
        len(names_in(state)),
        seconds,
        None if engine.unknown else traffic,
        tuple(sorted(engine.unknown)),
    )
