"""What engines with a crew of workers have in common: which value is where, and which job waits for what.

A job goes to a worker once its inputs are there, in the order in which jobs were submitted, while the method's code
goes on submitting. Reports of finished jobs (`done`, `watch`) are passed on by the thread that calls the engine,
whenever it waits.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from headwater.core import serialization
from headwater.core.rng import Key
from headwater.core.serialization import Info
from headwater.engines.availability import Presence
from headwater.engines.base import EVERY, Done, Files, Infos, Job, Ref
from headwater.engines.workers.scheduler import Cell, Kept, Name, Order, Queue, Several, choose, names_of, when_there
from headwater.errors import TaskError

TRIES = 3  # workers that may die over one job, or before they are ready for any


class WorkerEngine(ABC):
    def __init__(self) -> None:
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._closing = False
        self._changed = threading.Condition()  # guards the crew and all that belongs to a run
        self._count = self._run = 0
        self._forget()

    def _forget(self, presence: Presence | None = None) -> None:
        self._names: dict[str, Name | Several] = {}
        self._untold: set[str] = set()  # names whose size `finish` has not told yet
        self._dropped: dict[str, Name | Several] = {}  # those of them that were dropped
        self._ready = Queue(presence, self._someone_came)
        self._reports: list[Done] = []  # not yet passed on
        self._error: Exception | None = None
        self._stillborn = 0
        self._call: tuple[int, tuple[Key, ...]] = (0, ())  # the first order of the last run of a task

    # -- what an engine adds; called with the lock held ---------------------------------------------------------------

    @abstractmethod
    def _dispatch(self) -> None:
        """Hand waiting orders to workers that are free."""

    @abstractmethod
    def _take_up(self, path: Path) -> Kept:
        """Keep what is in a file."""

    # -- what the federation calls, in one thread -------------------------------------------------------------------

    def submit(self, *jobs: Job) -> None:
        try:
            pickled = cloudpickle.dumps(jobs)
        except Exception as error:
            told = f"{jobs[0].title} at {jobs[0].node}"
            raise TaskError(f"{told} cannot be sent to a worker process: {error}") from error
        with self._changed:
            if self._error is not None:
                raise self._error.with_traceback(None)
            self._count += 1
            if jobs[0].key[:-1] != self._call[1]:  # else another order of the same run of a task
                self._call = self._count, jobs[0].key[:-1]
            inputs = {ref.key: self._of(ref) for job in jobs for ref in job.refs()}
            cells = tuple(Cell() for _ in jobs)
            order = Order(self._count, self._call[0], self._run, jobs, pickled, inputs, cells)
            members = {job.node: Name(cell) for job, cell in zip(jobs, cells, strict=True)}
            self._name(jobs[0].name, Several(members) if len(jobs) > 1 else Name(cells[0]))
            order.missing = len(inputs)
            for held in inputs.values():
                held.cell.holders += 1
                when_there(held, lambda: self._one_less(order))
            if not inputs:
                self._ready.push(order)
            self._dispatch()

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        with self._changed:
            held = self._names[ref.name]
            if ref.member == EVERY and isinstance(held, Several):
                parts = {node: Name(cell, part + ref.part) for node, (cell, part) in held.members.items()}
                moved: Name | Several = Several(parts)
            else:
                cell, part = self._of(ref)
                moved = Name(cell, part + ref.part)
            for each in names_of(moved):
                each.cell.holders += 1
            self._name(name, moved)

    def either(self, new: Ref, old: Ref, name: str) -> None:
        with self._changed:
            known = [self._of(ref) for ref in (new, old)]
            parts = [Name(cell, part + ref.part) for (cell, part), ref in zip(known, (new, old), strict=True)]
            self._name(name, Name(choose(*parts)))

    def info(self, ref: Ref) -> Info | None:
        return self._settled(self._of(ref)).info()

    def read(self, ref: Ref) -> Any:
        return self._settled(self._of(ref)).value(ref.part)

    def drop(self, names: Iterable[str]) -> None:
        with self._changed:
            for name in names:
                held = self._names.pop(name, None)
                if held is None:
                    continue
                if name in self._untold:
                    self._dropped[name] = held
                for each in names_of(held):
                    if not self._stays(name, each):
                        each.cell.release()

    def trim(self, members: Mapping[str, Collection[str]]) -> None:
        with self._changed:
            for name, kept in members.items():
                held = self._names.get(name)
                if not isinstance(held, Several) or name in self._untold:
                    continue
                for node in [node for node in held.members if node not in kept]:
                    held.members.pop(node).cell.release()

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        infos: dict[str, Infos] = {}
        for name in names:
            held = self._names[name] if name in self._names else self._dropped[name]
            if isinstance(held, Several):
                infos[name] = {node: self._settled(each).info() for node, each in held.members.items()}
            else:
                infos[name] = self._settled(held).info()
        with self._changed:
            for name in infos:
                if name in self._dropped:
                    for each in names_of(self._dropped.pop(name)):
                        if self._stays(name, each):
                            each.cell.release()
                self._untold.discard(name)
        return infos

    def save(self, names: Iterable[str], directory: Path) -> Files:
        held = {name: self._names[name] for name in names}  # after an error, what is there can still be saved
        parts = {name: x.members if isinstance(x, Several) else {"": x} for name, x in held.items()}
        each = {(name, node): one for name, members in parts.items() for node, one in members.items()}
        real = {key: x.real if x.cell.there else self._settled(x) for key, x in each.items()}
        files = serialization.store_all({key: partial(x.save, directory) for key, x in real.items()})
        return {
            name: {node: files[name, node] for node in x.members} if isinstance(x, Several) else files[name, ""]
            for name, x in held.items()
        }

    def load(self, files: Files, directory: Path) -> None:
        every = {f for file in files.values() for f in ([file] if isinstance(file, str) else file.values()) if f}
        infos = {path: serialization.info(serialization.read(directory / path)) for path in every}  # all are whole
        cells = {"": Cell(0, there=True)}
        with self._changed:
            for path, info in infos.items():
                cells[path] = Cell(0, True, self._take_up(directory / path), info, {(directory, ()): path})
            for name, file in files.items():
                if isinstance(file, str):
                    held: Name | Several = Name(cells[file])
                else:
                    held = Several({node: Name(cells[one]) for node, one in file.items()})
                for each in names_of(held):
                    each.cell.holders += 1
                self._names[name] = held

    def _of(self, ref: Ref) -> Name:
        """What a ref names: one value, perhaps a member of a group."""
        held = self._names[ref.name]
        return held.members[ref.member] if isinstance(held, Several) else held

    def _settled(self, held: Name) -> Name:
        """Where a value is, once it is there."""
        self._wait(lambda: held.cell.there)
        return held.real

    def _name(self, name: str, held: Name | Several) -> None:
        self._names[name] = held
        self._untold.add(name)

    def _stays(self, name: str, held: Name) -> bool:
        """Whether a dropped value is needed until its size is told: that of a part is known from its file only."""
        return name in self._untold and (bool(held.part) or held.cell.choice)

    def _wait(self, until: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._reports) or self._error is not None or until())
                reports, self._reports = self._reports, []
                error, over = self._error, until()
            for done in reports:
                self.done.append(done)
                if self.watch:
                    self.watch(done)
            if error is not None:
                raise error.with_traceback(None)
            if over:
                return

    def _someone_came(self) -> None:
        with self._changed:
            if not self._closing:
                self._dispatch()

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _one_less(self, order: Order) -> None:
        order.missing -= 1
        if not order.missing:
            self._ready.push(order)

    def _died_over(self, order: Order, how: str) -> None:
        """An order whose worker died goes back to its place in the queue, unless it is the order that kills them."""
        order.deaths += 1
        if order.deaths < TRIES:
            self._ready.push(order)
        else:
            told = f"{order.title} failed: a worker process died over it {TRIES} times, the last {how}"
            self._fail(TaskError(f"{told}; memory may be short, so try fewer workers or smaller batches"))

    def _fail(self, error: Exception) -> None:
        """The first error counts: whoever waits raises it, and nothing more is begun."""
        self._error = self._error or error
        self._ready.clear()
