"""The engine of a deployed federation, used by the server.

Steps are collected until the method waits for a result; then all of them are carried out, here and by the parties
below. Values of other parties are known by name only. A value that a checkpoint names is kept at its party until two
newer checkpoints have been written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.core import sealed, serialization
from headwater.core.serialization import ValueInfo
from headwater.core.tree import ROOT
from headwater.deploy.dispatch import Dispatcher
from headwater.deploy.party_run import ValueStore
from headwater.deploy.steps import Choice, Move, Step, StepResults
from headwater.engines.base import Done, Files, Infos
from headwater.engines.jobs import LOST, Bundle, Job, Perhaps, Ref, field_names, pick, rebuilt
from headwater.errors import TaskError
from headwater.tasks.task import RunContext
from headwater.training.checkpoint import KEPT

MAX_VOID = 3  # void rounds in a row after which the server ends
HELD = ValueInfo(0, 0, "held")  # of a value that was computed before this process was started
AWAY = "@"  # marks, in place of a file name, the home and name of a value at another party


class DeployedEngine:
    """An engine whose homes are other parties.

    Args:
        store: the values of the server.
        dispatcher: carries out steps.
        deadline: seconds that a party has for one exchange.
        before_round: called with the number of a round before its first step.
        secret: of the server, where it adds noise.
    """

    losing = True  # parties may be lost at any time

    def __init__(
        self,
        store: ValueStore,
        dispatcher: Dispatcher,
        deadline: float,
        before_round: Callable[[int], None],
        secret: str = "",
    ) -> None:
        self.secret = secret
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._store, self._dispatcher, self._deadline, self._before_round = store, dispatcher, deadline, before_round
        self._steps: list[Step] = []
        self._homes: dict[str, str] = {}  # home of every value that was not dropped
        self._same: dict[str, Ref] = {}  # names that stand for older values, since a party was lost
        self._infos: dict[str, ValueInfo | None] = {}
        self._saved: deque[dict[str, str]] = deque(maxlen=KEPT)  # by name, home of values that checkpoints need
        self._round, self._void_rounds, self._void = -1, 0, False

    @property
    def gone(self) -> frozenset[str]:
        """Parties that give nothing more in this round."""
        return self._dispatcher.gone

    def start(self, context: RunContext) -> None:
        self.done.clear()

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self._homes[job.name] = job.home
            self._steps.append(replace(job, inputs=self._renamed(dict(job.inputs))) if self._same else job)

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        self._homes[name] = home
        self._steps.append(Move(self._renamed(ref), home, name, tiers))

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self._homes[name] = new.home
        self._steps.append(Choice(self._renamed(new), self._renamed(old), name))

    def info(self, ref: Ref) -> ValueInfo | None:
        self._run()
        return self._infos[ref.name] if ref.name in self._infos else _info(self._store[ref.name])

    def read(self, ref: Ref) -> Any:
        self._run()
        ref = self._renamed(ref)
        return pick(self._store[ref.name], ref)

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._homes.pop(name, None)

    def trim(self, members: Mapping[str, Collection[str]]) -> None:
        """Does nothing: values of parties are never grouped."""

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        self._run()
        infos: dict[str, Infos] = {name: self._infos[name] for name in names}
        needed = self._needed()
        for name in [name for name in self._infos if name not in needed]:
            del self._infos[name]
        for name in [name for name in self._same if name not in needed]:
            del self._same[name]
        self._store.keep(needed)
        return infos

    def save(self, names: Iterable[str], directory: Path) -> Files:
        self._run()
        directory.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        away: dict[str, str] = {}
        for name in names:
            ref, home = self._renamed(Ref(name, self._homes[name])), self._homes[name]
            if home == ROOT:
                value = self._store[ref.name]
                files[name] = "" if value is LOST else serialization.store(value, directory)
            elif self._infos.get(ref.name, HELD) is None:  # lost, even if its party computed it
                files[name] = ""
            else:  # by its name there
                files[name] = f"{AWAY}{home}{AWAY}{ref.name}"
                away[ref.name] = home
        self._saved.append(away)
        return files

    def load(self, files: Files, directory: Path) -> None:
        away: dict[str, str] = {}
        known = {name: file for name, file in files.items() if isinstance(file, str)}
        if len(known) < len(files):
            raise ValueError("groups of values are made in simulations only")
        own = {name: file for name, file in known.items() if file and file[0] != AWAY}
        read = sealed.read_all(own, directory)
        values = {name: read[file] for name, file in own.items()}
        for name, file in known.items():
            if name in values or not file:
                self._store[name] = values.get(name, LOST)
                self._homes[name] = ROOT
            else:
                _, home, there = file.split(AWAY, 2)
                self._homes[name] = away[there] = home
                if there != name:
                    self._same[name] = Ref(there, home)
        self._saved.append(away)

    def close(self) -> None:
        self._steps = []

    def _run(self) -> None:
        """Carry out all steps that were collected."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        round = max(int(step.name.partition(".")[0]) for step in steps)
        late = round == 0 and self._round > 0  # clients that join have their round 0 between other rounds
        if round != self._round and not late:
            self._round, self._void_rounds, self._void = round, self._void_rounds if self._void else 0, False
            self._before_round(round)
        results = self._dispatcher.run(steps, round, self._needed_by_home(steps), self._deadline)
        if round == 0 and results.events:  # a party was lost, which without a first model could not join later
            self._dispatcher.new_attempt()
            results = self._dispatcher.run(steps, round, self._needed_by_home(steps), self._deadline)
        results.void = results.void and not late
        self._accept(results)

    def _accept(self, results: StepResults) -> None:
        if results.void and not self._void:  # a round has several parts where a method waits
            self._void_rounds, self._void = self._void_rounds + 1, True
        if self._void_rounds >= MAX_VOID:
            why = results.events[-2] if len(results.events) > 1 else "see the log"
            raise TaskError(
                f"{MAX_VOID} rounds in a row counted for nothing (the last time: {why}); see to that, then start the "
                "server again: it carries on at its round. `headwater deploy rollback` takes it to an earlier one"
            )
        self._infos |= results.infos
        self._same |= results.same
        for done in results.done:
            self.done.append(done)
            if self.watch:
                self.watch(done)

    def _needed_by_home(self, steps: Iterable[Step]) -> dict[str, list[str]]:
        """By home, names of the values there that may still be needed."""
        homes = {name: home for saved in self._saved for name, home in saved.items()}
        homes |= {name: home for name, home in self._homes.items() if home != ROOT}
        for ref in self._same.values():
            homes[ref.name] = ref.home
        for step in steps:
            homes |= {ref.name: ref.home for ref in step.refs()} | {step.name: step.home}
        names: dict[str, list[str]] = {}
        for name, home in homes.items():
            names.setdefault(home, []).append(name)
        return names

    def _needed(self) -> set[str]:
        return {*self._homes, *(ref.name for ref in self._same.values())}

    def _renamed(self, thing: Any) -> Any:
        """Replace names that stand for older values, at any depth."""
        if not self._same:
            return thing
        if isinstance(thing, Ref):
            while (older := self._same.get(thing.name)) is not None:
                thing = Ref(older.name, older.home, older.part + thing.part)
            return thing
        if isinstance(thing, Bundle):
            return Bundle({child: self._renamed(ref) for child, ref in thing.refs.items()})
        if isinstance(thing, Perhaps):
            return Perhaps(self._renamed(thing.held))
        if isinstance(thing, dict):
            return {key: self._renamed(item) for key, item in thing.items()}
        if isinstance(thing, tuple | list):
            return tuple(map(self._renamed, thing))
        if names := field_names(type(thing)):
            parts = {name: self._renamed(getattr(thing, name)) for name in names}
            return rebuilt(thing, {name: item for name, item in parts.items() if item is not getattr(thing, name)})
        return thing


def _info(value: Any) -> ValueInfo | None:
    return None if value is LOST else serialization.info(value)
