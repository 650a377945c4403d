"""The server's engine of a deployed federation: steps are written down until something is waited for, and then all of
them are done, here and by those below.

Values below are known by name only. What a checkpoint names is kept where it is until two newer ones have been written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.core import serialization
from headwater.core.serialization import Info
from headwater.core.tree import ROOT
from headwater.deploy.dispatch import Dispatcher
from headwater.deploy.outcome import Outcome
from headwater.deploy.program import Choice, Move, Step
from headwater.deploy.store import Store
from headwater.engines.base import LOST, Bundle, Done, Files, Infos, Job, Perhaps, Ref, field_names, pick, rebuilt
from headwater.errors import TaskError
from headwater.tasks.task import RunContext
from headwater.training.checkpoint import KEPT

IDLE = 3  # rounds in a row that may count for nothing
HELD = Info(0, 0, "held")  # of what was made before this process was started
AWAY = "@"  # before the home of a value that is not here, in place of a file's name


class Deployed:
    """An engine whose homes are other parties; `losing`: they may be lost at any time."""

    losing = True

    def __init__(self, store: Store, dispatcher: Dispatcher, deadline: float, before: Callable[[int], None]) -> None:
        """`before` is called with a round's number before the first of its steps is done."""
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._store, self._dispatcher, self._deadline, self._before = store, dispatcher, deadline, before
        self._todo: list[Step] = []
        self._homes: dict[str, str] = {}  # of every value that was not dropped
        self._same: dict[str, Ref] = {}  # names that stand for older values, since somebody was lost
        self._infos: dict[str, Info | None] = {}
        self._saved: deque[dict[str, str]] = deque(maxlen=KEPT)  # home by name, of what checkpoints need elsewhere
        self._round, self._idle, self._void = -1, 0, False

    @property
    def gone(self) -> frozenset[str]:
        """Parties of whom nothing is to be had any more in this round."""
        return self._dispatcher.gone

    def start(self, context: RunContext) -> None:
        self.done.clear()

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self._homes[job.name] = job.home
            self._todo.append(replace(job, inputs=self._renamed(dict(job.inputs))) if self._same else job)

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        self._homes[name] = home
        self._todo.append(Move(self._renamed(ref), home, name, tiers))

    def either(self, new: Ref, old: Ref, name: str) -> None:
        self._homes[name] = new.home
        self._todo.append(Choice(self._renamed(new), self._renamed(old), name))

    def info(self, ref: Ref) -> Info | None:
        self._do()
        return self._infos[ref.name] if ref.name in self._infos else _info(self._store[ref.name])

    def read(self, ref: Ref) -> Any:
        self._do()
        ref = self._renamed(ref)
        return pick(self._store[ref.name], ref)

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._homes.pop(name, None)

    def trim(self, members: Mapping[str, Collection[str]]) -> None:
        """Values of parties are never grouped."""

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        self._do()
        found: dict[str, Infos] = {name: self._infos[name] for name in names}
        needed = self._needed()
        for name in [name for name in self._infos if name not in needed]:
            del self._infos[name]
        for name in [name for name in self._same if name not in needed]:
            del self._same[name]
        self._store.keep(needed)
        return found

    def save(self, names: Iterable[str], directory: Path) -> Files:
        self._do()
        directory.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        away: dict[str, str] = {}
        for name in names:
            ref, home = self._renamed(Ref(name, self._homes[name])), self._homes[name]
            if home == ROOT:
                value = self._store[ref.name]
                files[name] = "" if value is LOST else serialization.store(value, directory)
            elif self._infos.get(ref.name, HELD) is None:  # whatever whoever was lost may have made of it
                files[name] = ""
            else:  # under the name that it has there
                files[name] = f"{AWAY}{home}{AWAY}{ref.name}"
                away[ref.name] = home
        self._saved.append(away)
        return files

    def load(self, files: Files, directory: Path) -> None:
        away: dict[str, str] = {}
        known = {name: file for name, file in files.items() if isinstance(file, str)}
        if len(known) < len(files):
            raise ValueError("groups of values are made in simulations only")
        values = {
            name: serialization.read(directory / file) for name, file in known.items() if file and file[0] != AWAY
        }
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
        self._todo = []

    # -- doing

    def _do(self) -> None:
        """All that was written down."""
        if not self._todo:
            return
        steps, self._todo = self._todo, []
        round = max(int(step.name.partition(".")[0]) for step in steps)
        if round != self._round:
            self._round, self._idle, self._void = round, self._idle if self._void else 0, False
            self._before(round)
        out = self._dispatcher.run(steps, round, self._kept(steps), self._deadline)
        if round == 0 and out.events:  # somebody was lost, who without a first model would have no part in the rest
            self._dispatcher.anew()
            out = self._dispatcher.run(steps, round, self._kept(steps), self._deadline)
        self._take(out)

    def _take(self, out: Outcome) -> None:
        if out.void and not self._void:  # a round is done in several parts where a method waits
            self._idle, self._void = self._idle + 1, True
        if self._idle >= IDLE:
            why = out.events[-2] if len(out.events) > 1 else "see the log"
            raise TaskError(
                f"{IDLE} rounds in a row counted for nothing (the last time: {why}); see to that, then start the "
                "server again: it carries on at its round"
            )
        self._infos |= out.infos
        self._same |= out.same
        for done in out.done:
            self.done.append(done)
            if self.watch:
                self.watch(done)

    def _kept(self, steps: Iterable[Step]) -> dict[str, list[str]]:
        """By home, all that is held there and may still be asked for."""
        homes = {name: home for saved in self._saved for name, home in saved.items()}
        homes |= {name: home for name, home in self._homes.items() if home != ROOT}
        for ref in self._same.values():
            homes[ref.name] = ref.home
        for step in steps:
            homes |= {ref.name: ref.home for ref in step.refs()} | {step.name: step.home}
        kept: dict[str, list[str]] = {}
        for name, home in homes.items():
            kept.setdefault(home, []).append(name)
        return kept

    def _needed(self) -> set[str]:
        return {*self._homes, *(ref.name for ref in self._same.values())}

    def _renamed(self, thing: Any) -> Any:
        """With names in place of those that stand for them."""
        if not self._same:
            return thing
        if isinstance(thing, Ref):
            while (held := self._same.get(thing.name)) is not None:
                thing = Ref(held.name, held.home, held.part + thing.part)
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


def _info(value: Any) -> Info | None:
    return None if value is LOST else serialization.info(value)
