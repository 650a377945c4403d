"""A method's rounds without the work: its own code submits every task, and nobody carries them out.

What is then known is exact, whatever the method: who trains, who leads, who teaches whom and on how many samples. Only
what a method reads before it goes on is worked out, and only where nothing has to be trained for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwater.core.federation import SERVER, Federation
from headwater.core.precompute import Precompute
from headwater.core.sampling import participants
from headwater.core.serialization import Info
from headwater.core.values import names_in
from headwater.engines.base import EVERY, Done, Files, Infos, Job, Ref, pick
from headwater.engines.execution import execute
from headwater.planning.work import Account, Value, Work
from headwater.tasks.average import initial
from headwater.tasks.task import RunContext
from headwater.training.evaluation import ask, tests_for
from headwater.training.experiment import Experiment
from headwater.training.loop import open_session

JOBS = 20_000  # tasks of clients that are gone through one by one; a longer run is judged by its first rounds
LEAST = 3  # rounds that are gone through however many clients there are: the first is often unlike the others


class Unforeseen(Exception):  # noqa: N818 (a signal, not an error)
    """A method reads what only training can tell."""


class Nobody:
    """An engine that takes note of jobs and does none of them."""

    def __init__(self, experiment: Experiment) -> None:
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self.works: list[Work] = []
        self._known: dict[str, Value] = {}  # by key
        self._members: dict[str, list[str]] = {}  # of names
        self._context = experiment.context()
        self._account = Account(experiment, lambda ref: self._known[ref.key])

    def start(self, context: RunContext) -> None:
        self._context = context

    def submit(self, *jobs: Job) -> None:
        first = len(self.works)
        for job in jobs:
            work, value = self._account.of(job, len(self.works))
            if job.phase in ("average", "evaluate"):  # what a method may read, with what it is made from
                given = {ref.key: self._known[ref.key] for ref in job.refs()}
                value = Value(value.arch, value.members, value.rows, value.number, job, given)
            self.works.append(replace(work, group=first))
            member = job.node if len(jobs) > 1 else ""
            self._known[Ref(job.name, job.home, (), member).key] = value
            self._members.setdefault(job.name, []).append(member)

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        members = self._members.get(ref.name, [""]) if ref.member == EVERY else [ref.member]
        for member in members:
            held = self._known[replace(ref, member=member).key]
            kept = Ref(name, home, (), member if ref.member == EVERY else "")
            self._known[kept.key] = held if not ref.part else Value(held.arch, 1, held.rows, held.number)
            self._members.setdefault(name, []).append(kept.member)

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self.move(new, new.home, name)

    def info(self, ref: Ref) -> Info | None:
        return Info(0, 0, "value")

    def read(self, ref: Ref) -> Any:
        return pick(self._value(self._known[ref.key]), replace(ref, member=""))

    def _value(self, held: Value) -> Any:
        if held.job is None or any(part.job is None for part in held.given.values()):
            raise Unforeseen
        return execute(
            held.job,
            self._context,
            lambda ref: pick(self._value(held.given[ref.key]), replace(ref, member="")),
            lambda ref: None,
        )[0]

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            for member in self._members.pop(name, ()):
                self._known.pop(Ref(name, "", (), member).key, None)

    def trim(self, members: Mapping[str, Collection[str]]) -> None: ...

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        return dict.fromkeys(names)  # as if all had been lost: nothing is charged

    def save(self, names: Iterable[str], directory: Path) -> Files:
        raise NotImplementedError

    def load(self, files: Files, directory: Path) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._known.clear()


@dataclass(frozen=True)
class Rehearsed:
    """All tasks of the rounds that were gone through, in the order of submission; those of round 0 prepare the run."""

    works: tuple[Work, ...]
    rounds: int
    kept: int  # values that the method keeps from one round to the next
    seconds: float  # that a round's submitting took


def rehearse(experiment: Experiment) -> Rehearsed | None:
    """Go through a run's tasks; None if what a method does depends on what training brings."""
    config, tree = experiment.config, experiment.tree
    share, seed = config.partition.participation, config.seed
    active = max(1, len(participants(tree, share, seed, 1)))
    rounds = min(config.rounds, max(LEAST, JOBS // active))
    own_tests, engine = config.partition.local_test > 0, Nobody(experiment)
    session = open_session(experiment, engine, Precompute.of(experiment.context()))
    fed = Federation(tree, session, tree.holders, purpose="setup")
    try:
        state = experiment.method.init(fed, fed.run(initial, at=SERVER, arch=experiment.model.name))
        tests = tests_for(fed, state, own_tests)
        begun = time.process_time()
        for number in range(1, rounds + 1):
            fed = fed.begin(number, participants(tree, share, seed, number))
            state = experiment.method.round(fed, state)
            if number % config.eval_every == 0 or number == config.rounds:
                ask(fed, state, tests, own_tests)
            fed.session.release(names_in([state, tests]))
            fed.session.settle(number)
    except Unforeseen:
        return None
    seconds = (time.process_time() - begun) / rounds
    return Rehearsed(tuple(engine.works), rounds, len(names_in(state)), seconds)
