"""Worker processes on this machine; values are files in shared memory, so that a move is only another name.

A thread hands jobs whose inputs exist to free workers, in the order in which they were submitted, while the method's code goes
on submitting. Reports of finished jobs are passed on (`done`, `watch`) by the thread that calls the engine, whenever it waits.
A worker that dies is replaced and its job repeated.
"""

from __future__ import annotations

import atexit
import heapq
import os
import pickle
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from headwater import codecs
from headwater.codecs import Info
from headwater.engines.base import LOST, Done, Job, Ref, pick
from headwater.engines.shared import Failure, Reply, Space, environment, pack
from headwater.errors import ConfigError, TaskError
from headwater.stages.site import Context

TRIES = 3  # workers that may die over one job, or before they are ready for any


@dataclass(eq=False)
class Cell:
    """One value, under way or there. Names and jobs hold it; its file goes when nobody does."""

    holders: int = 1
    there: bool = False
    file: Path | None = None  # a lost value has none
    info: Info | None = None
    waiting: list[Order] = field(default_factory=list)


class Name(NamedTuple):
    """What a name stands for: a value, or a part of it."""

    cell: Cell
    part: tuple[Any, ...] = ()


@dataclass(eq=False)
class Order:
    """A job on its way: `missing` of its inputs are not there yet."""

    number: int
    run: int
    job: Job
    pickled: bytes
    inputs: Mapping[str, Name]
    cell: Cell = field(default_factory=Cell)
    missing: int = 0
    deaths: int = 0

    @property
    def title(self) -> str:
        return f"{self.job.title} at {self.job.node} (home {self.job.home})"

    @property
    def file(self) -> str:
        return f"value-{self.number}"

    def __lt__(self, other: Order) -> bool:
        return self.number < other.number


@dataclass(eq=False)
class Hand:
    """One worker process, seen from here."""

    number: int
    process: subprocess.Popen[bytes]
    pipe: Connection
    ready: bool = False
    order: Order | None = None


class Pool:
    def __init__(self, workers: int, threads: int = 1) -> None:
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._workers, self._threads = workers, threads
        self._change = threading.Condition()  # guards all that follows
        self._crew: dict[int, Hand] = {}
        self._run = self._count = self._stillborn = 0
        self._open = False
        self._forget()

    def _forget(self) -> None:
        self._names: dict[str, Name] = {}
        self._infos: dict[str, Info | None] = {}  # of values that the last `drop` named
        self._stored: dict[tuple[Path, Path, tuple[Any, ...]], str] = {}  # what is on disk: (directory, file, part) → name
        self._ready: list[Order] = []  # a heap: jobs whose inputs are there
        self._unfinished = 0
        self._reports: list[Done] = []
        self._error: Exception | None = None

    # -- the engine's verbs, called by one thread -------------------------------------------------------------------------

    def start(self, context: Context) -> None:
        if not self._open:
            self._space, self._selector = Space.create(), selectors.DefaultSelector()
            self._open, self._owner = True, os.getpid()
            atexit.register(self.close)
        with self._change:
            for name in self._names.values():
                self._release(name.cell)
            self._space.discard(f"context-{self._run}")
            self._run, self._stillborn = self._run + 1, 0
            self._forget()
            for number in range(self._workers):  # they start up while the data is written
                if number not in self._crew:
                    self._hire(number)
            self._dispatch()
        try:
            self._context = pack(context, self._space, f"context-{self._run}")
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"the model or the data cannot be sent to worker processes ({error}); build it inside the function that is "
                "given as the model, or use engine.name = 'inline'"
            ) from error
        self.done.clear()

    def submit(self, job: Job) -> None:
        try:
            pickled = cloudpickle.dumps(job)
        except Exception as error:
            raise TaskError(f"{job.title} at {job.node} cannot be sent to a worker process: {error}") from error
        with self._change:
            self._check()
            self._count += 1
            inputs = {ref.name: self._names[ref.name] for ref in job.refs()}
            order = Order(self._count, self._run, job, pickled, inputs)
            self._names[job.name] = Name(order.cell)
            self._unfinished += 1
            for cell, _ in inputs.values():
                cell.holders += 1
                if not cell.there:
                    cell.waiting.append(order)
                    order.missing += 1
            if not order.missing:
                heapq.heappush(self._ready, order)
                self._dispatch()

    def move(self, ref: Ref, home: str, name: str) -> None:
        with self._change:
            cell, part = self._names[ref.name]
            cell.holders += 1
            self._names[name] = Name(cell, part + ref.part)

    def info(self, name: str) -> Info | None:
        if name in self._infos:
            return self._infos[name]
        cell, part = self._wait_for(name)
        if not part or cell.file is None:
            return cell.info
        value = self.read(Ref(name, ""))
        return codecs.info(value)

    def read(self, ref: Ref) -> Any:
        cell, part = self._wait_for(ref.name)
        value = LOST if cell.file is None else codecs.read(cell.file)
        return pick(pick(value, Ref(ref.name, ref.home, part)), ref)

    def drop(self, names: Iterable[str]) -> None:
        """Waits until all that was submitted is done, as `inline` does: then the round's reports are complete."""
        self._wait(lambda: not self._unfinished)
        held = [name for name in names if name in self._names]
        self._infos = {name: self.info(name) for name in held}
        with self._change:
            for name in held:
                self._release(self._names.pop(name).cell)

    def save(self, names: Iterable[str], directory: Path) -> dict[str, str]:
        files = {}
        for name in names:
            cell, part = self._wait_for(name)
            if cell.file is None:
                files[name] = ""
                continue
            key = directory, cell.file, part
            if key not in self._stored or not (directory / self._stored[key]).exists():
                self._stored[key] = codecs.store(self.read(Ref(name, "")), directory)
            files[name] = self._stored[key]
        return files

    def load(self, files: Mapping[str, str], directory: Path) -> None:
        values = {file: codecs.read(directory / file) for file in set(files.values()) - {""}}  # refused here, if not whole
        with self._change:
            cells = {"": Cell(0, there=True)}
            for file, value in values.items():
                self._count += 1
                path = self._space.copy(f"value-{self._count}", directory / file)
                cells[file] = Cell(0, True, path, codecs.info(value))
                self._stored[directory, path, ()] = file
            for name, file in files.items():
                cells[file].holders += 1
                self._names[name] = Name(cells[file])

    def close(self) -> None:
        if not self._open or os.getpid() != self._owner:  # a process that was forked off has no business here
            return
        with self._change:
            crew, self._workers_wanted = list(self._crew.values()), 0
            self._open = False
        for hand in crew:
            hand.process.terminate()
        for hand in crew:
            try:
                hand.process.wait(5)
            except subprocess.TimeoutExpired:
                hand.process.kill()
                hand.process.wait()
        self._thread.join(5)
        self._space.remove()
        self._forget()
        atexit.unregister(self.close)
