"""Which values of a run leave the trusted places without protection, derived from the method's tasks and moves.

The method is rehearsed as for a plan. Every value carries what is known of it: it follows from released values alone
(`SAFE`), it is a mean of bounded updates that still needs noise (`BOUNDED`), or it may reveal anything about the rows
of clients (`OPEN`). A value that is not safe and comes to a party that is not trusted is an exposure, and no ε holds. A
value that is masked for a secure sum is safe until its masks are removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headwater.algorithms.base import outputs
from headwater.core.federation import SERVER
from headwater.core.params import Params
from headwater.core.sampling import participants
from headwater.core.tree import ROOT
from headwater.engines.jobs import EVERY, Job, Ref
from headwater.planning.rehearsal import RehearsalEngine, Unforeseen, Value, Work
from headwater.specs import LocalSpec
from headwater.tasks.average import average, average_like, initial
from headwater.tasks.local import local_train
from headwater.tasks.optimizers import total_steps
from headwater.tasks.privacy import Privacy
from headwater.training.evaluation import submit_evaluation, tests_for
from headwater.training.experiment import Experiment
from headwater.training.opening import open_federation, run_context

ROUNDS = 3  # the first ones often differ from the others; later ones do not
SAFE, BOUNDED, OPEN = 0, 1, 2
BARE = "models whose updates have no noise"
WORDS = {  # by task
    "knowledge": "class means, mean predictions and class counts",
    "label_counts": "label counts",
    "own_rows": "the rows themselves",
    "predict": "predictions",
    "prototypes": "class means and class counts",
    "own_accuracy": "accuracies on clients' own tests",
    "score_on": "accuracies of clients' own models",
    "variate": "control variates",
    "distill": "distilled models",
    "local_train": "models",
}
Level = Literal["clients", "rows"]


@dataclass(frozen=True)
class Known:
    """What is known of a value.

    Args:
        state: `SAFE`, `BOUNDED` or `OPEN`.
        clients: whose bounded updates are in it.
        parts: of a mapping, by key, where they differ.
        source: the task that made it open.
        masked: the state of what is left when masks are removed.
    """

    state: int = SAFE
    clients: frozenset[str] = frozenset()
    parts: Mapping[Any, Known] = field(default_factory=dict)
    source: str = ""
    masked: int = SAFE

    def part(self, path: Iterable[Any]) -> Known:
        found = self
        for key in path:
            found = found.parts.get(key, replace(found, parts={}))
        return found


@dataclass(frozen=True)
class Exposure:
    """What leaves unprotected, and how often a client releases something.

    Args:
        leaks: what leaves unprotected, in words.
        releases: of a client in a round, at most.
        training: lengths of local training.
    """

    leaks: tuple[str, ...]
    releases: int = 1
    training: tuple[LocalSpec, ...] = ()

    def steps(self, rows: int) -> int:
        """Most steps that a client with so many rows takes in a round."""
        return self.releases * max((total_steps(rows, spec) for spec in self.training), default=0)

    def probability(self, rows: int) -> float:
        """Largest probability with which one of so many rows is in a step's batch."""
        return max((min(1.0, spec.batch / rows) for spec in self.training), default=1.0)


class Tracing(RehearsalEngine):
    """Rehearses tasks, and follows what is known of every value.

    Args:
        privacy: what protects clients and rows.
        level: whose protection is looked at.
        clients: names of all clients.
        sectors: names of all sectors.
    """

    def __init__(self, privacy: Privacy, level: Level, clients: Any, sectors: Iterable[str]) -> None:
        super().__init__()
        self._privacy, self._level, self._clients, self._hosts = privacy, level, clients, set(sectors)
        self._at = privacy.at if level == "clients" else "client"
        self._known: dict[str, Known] = {}
        self.leaks: Counter[str] = Counter()
        self.releases: Counter[tuple[int, str]] = Counter()  # by round and client
        self.specs: set[LocalSpec] = set()  # of local training: how long, which batches

    def _rehearse(self, job: Job, group: int) -> tuple[Work, Value]:
        work, value = super()._rehearse(job, group)
        self._next = self._result_of(job, value)
        return work, value

    def _put(self, name: str, member: str, value: Value) -> None:
        super()._put(name, member, value)
        self._known[Ref(name, "", (), member).key] = self._next

    def _of(self, ref: Ref) -> Known:
        return self._known[replace(ref, part=()).key].part(ref.part)

    def _result_of(self, job: Job, value: Value) -> Known:
        """What is known of a job's result."""
        inputs = [self._of(ref) for ref in job.refs()]
        worst = max((each.state for each in inputs), default=SAFE)
        masked = max((each.masked for each in inputs), default=SAFE)
        source = next((each.source for each in inputs if each.state == OPEN or each.masked == OPEN), "")
        who = frozenset().union(*(each.clients for each in inputs))
        masks = getattr(job.task, "masks", "")
        if masks == "add":
            return Known(SAFE, who, source=source, masked=max(worst, masked))
        if masks == "remove":
            return self._arrived(Known(masked, who, source=source), "client", job.home)
        if job.home in self._clients:
            derived = getattr(job.task, "derived", False)
            if callable(derived):
                derived = derived(**{name: item for name, item in job.inputs.items() if name in job.plain})
            known = (
                Known(OPEN if worst else SAFE, source=source or job.title) if derived else self._at_client(job, value)
            )
            return self._with_passed(job, value, known)
        if worst == BOUNDED and job.task in (average, average_like):
            if not self._privacy.adds_noise("server" if job.home == ROOT else "sector"):
                return Known(BOUNDED, who)
            self.releases.update((job.round, client) for client in who)
            return Known()
        return Known(OPEN if worst else SAFE, who, source=source or (job.title if worst else ""), masked=masked)

    def _with_passed(self, job: Job, value: Value, known: Known) -> Known:
        """Parts of a result that are unchanged inputs keep what is known of these inputs."""
        passes: Mapping[str, str] = getattr(job.task, "passes", None) or {}
        inputs = {key: job.inputs.get(name) for key, name in passes.items()}
        unchanged = {key: self._of(ref) for key, ref in inputs.items() if isinstance(ref, Ref)}
        return replace(known, parts={**known.parts, **unchanged}) if unchanged else known

    def _at_client(self, job: Job, value: Value) -> Known:
        """What is known of a task that uses the rows of a client."""
        start = job.inputs.get(getattr(job.task, "update", "")) if job.node in self._clients else None
        unknown = Known(OPEN, source=job.title)
        if not isinstance(start, Ref) or self._of(start).state != SAFE:
            return unknown
        if self._privacy.quantile and not getattr(job.task, "takes_bound", False):
            return unknown  # it would not know the bound of the round
        noisy = self._level == "rows"
        if noisy and (job.task is not local_train or job.inputs.get("data") is not None):
            return unknown
        if isinstance(spec := job.inputs.get("spec"), LocalSpec):
            how_long = LocalSpec(epochs=spec.epochs, steps=spec.steps, batch=spec.batch, drop_last=spec.drop_last)
            self.specs.add(how_long)  # rates may differ from round to round
        if noisy or self._privacy.adds_noise("client"):
            self.releases[job.round, job.node] += 1
            model = Known()
        else:
            model = Known(BOUNDED, frozenset([job.node]))
        if isinstance(value.outline, Mapping):
            return Known(
                OPEN,
                parts={key: model if isinstance(part, Params) else unknown for key, part in value.outline.items()},
                source=job.title,
            )
        return model

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        every = ref.member == EVERY
        found = {
            member: self._of(replace(ref, member=member))
            for member in (self._members.get(ref.name, [""]) if every else [ref.member])
        }
        if tiers and ref.home != home:
            found = {member: self._arrived(known, ref.home, home) for member, known in found.items()}
        self._next = Known()
        super().move(ref, home, name, tiers)
        for member, known in found.items():
            self._known[Ref(name, "", (), member if every else "").key] = known

    def either(self, new: Ref, old: Ref, name: str) -> None:
        worse = max(self._of(new), self._of(old), key=lambda known: known.state)
        super().either(new, old, name)
        self._known[Ref(name, "", (), "").key] = worse

    def drop(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            for member in self._members.get(name, ()):
                self._known.pop(Ref(name, "", (), member).key, None)
        super().drop(names)

    def _arrived(self, known: Known, sender: str, home: str) -> Known:
        """What is known of a value at its new home. An exposure is counted once: what follows from it is safe."""
        if known.state == SAFE or self._trusted(home):
            return known
        self._expose(known, sender, home)
        return Known()

    def _trusted(self, home: str) -> bool:
        return (self._at == "server" and home not in self._clients) or (self._at == "sector" and home in self._hosts)

    def _role(self, home: str) -> str:
        return "the server" if home == ROOT else "sectors" if home in self._hosts else "clients"

    def _expose(self, known: Known, sender: str, receiver: str = "") -> None:
        what = WORDS.get(known.source, f"results of {known.source}") if known.state == OPEN else BARE
        to = f" to {self._role(receiver)}" if receiver else ""
        self.leaks[f"{what}, from {self._role(sender)}{to}"] += 1

    def finals(self, state: Any) -> None:
        """Check the models that the run leaves, which anybody may read."""
        shown = outputs(state)
        left = [each for each in (shown.model or shown.personal,) if each is not None]
        if not left and shown.team is not None:
            left = [*shown.team.members.values()] if isinstance(shown.team.members, Mapping) else [shown.team.members]
        for home, held in (pair for located in left for pair in located.nodes.items()):
            for ref in [held] if isinstance(held, Ref) else held.refs.values():
                if (known := self._of(ref)).state != SAFE:
                    self._expose(known, home)


def exposure(experiment: Experiment, level: Level) -> Exposure:
    """What a run exposes beside what `[privacy]` protects.

    Args:
        experiment: the run.
        level: "clients" for noise on updates, "rows" for noise on gradients of rows.
    """
    config, tree = experiment.config, experiment.tree
    own_tests = config.partition.local_test > 0
    context = run_context(experiment)
    engine = Tracing(context.privacy, level, tree.sector_of, tree.sectors)
    engine.start(context)
    fed = open_federation(experiment, engine, context)
    engine._next = Known()
    leaks = []
    try:
        state = experiment.method.init(fed, fed.run(initial, at=SERVER, arch=experiment.model.name))
        tests = tests_for(fed, state, own_tests)
        fed.keep([state, tests])
        for number in range(1, min(ROUNDS, config.rounds) + 1):
            fed = fed.begin(number, participants(tree, config.partition.participation, config.seed, number))
            state = experiment.after_round(fed, state)
            submit_evaluation(fed, state, tests, own_tests, by_client=False)
            fed.keep([state, tests])
        if not engine.leaks:
            engine.finals(state)
    except Unforeseen:
        leaks.append("anything, since what this method sends depends on the results of training")
    if experiment.exchange is not None:
        leaks.append("statistics of the clients' rows, before round 1")
    return Exposure((*leaks, *engine.leaks), max(engine.releases.values(), default=1), tuple(engine.specs))
