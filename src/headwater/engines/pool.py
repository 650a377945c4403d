"""Worker processes on this machine; values are files in shared memory, so that a move is only another name.

A job goes to the first worker that is free once its inputs are there, in the order in which jobs were submitted, while
the method's code goes on submitting: a thread for each worker takes its replies and hands it the next job. Reports of
finished jobs (`done`, `watch`) are passed on by the thread that calls the engine, whenever it waits. A worker that dies
is replaced and its job repeated.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from headwater import codecs
from headwater.codecs import Info
from headwater.engines.base import Done, Job, Ref
from headwater.engines.crew import Hand
from headwater.engines.orders import Cell, Name, Order, choose, when_there
from headwater.engines.presence import Presence
from headwater.engines.queue import Queue
from headwater.engines.shared import Reply, Space, pack
from headwater.engines.shelf import Budget, budget_of
from headwater.errors import TaskError
from headwater.rng import Key
from headwater.stages.site import Context

TRIES = 3  # workers that may die over one job, or before they are ready for any


class Pool:
    def __init__(self, workers: int, threads: int = 1, memory: float = 0.0) -> None:
        self.done: list[Done] = []
        self.watch: Callable[[Done], None] | None = None
        self._workers, self._threads, self._memory = workers, threads, budget_of(memory)
        self._space: Space | None = None  # there is one from the first `start` to `close`
        self._closing = False
        self._crew: dict[int, Hand] = {}
        self._at: dict[Hand, Order] = {}  # what each is busy with
        self._listeners: list[threading.Thread] = []
        self._changed = threading.Condition()  # guards the crew and all that belongs to a run
        self._count = self._run = 0
        self._forget()

    def _forget(self, presence: Presence | None = None) -> None:
        self._names: dict[str, Name] = {}
        self._budget = Budget(self._memory)
        self._untold: set[str] = set()  # names whose size `finish` has not told yet
        self._dropped: dict[str, Name] = {}  # those of them that were dropped
        self._ready = Queue(presence, self._someone_came)
        self._reports: list[Done] = []  # not yet passed on
        self._error: Exception | None = None
        self._stillborn = 0
        self._call: tuple[int, tuple[Key, ...]] = (0, ())  # the first order of the last run of a task

    # -- what the federation calls, in one thread -------------------------------------------------------------------

    def start(self, context: Context) -> None:
        with self._changed:
            if self._space is None:
                self._space, self._owner, self._closing = Space.create(), os.getpid(), False
                atexit.register(self.close)
            self._space.clear()
            self._ready.clear()
            self._forget(Presence(context))
            self._run += 1
            for number in set(range(self._workers)) - set(self._crew):
                self._hire(number)  # it starts up while the data is written
        self.done.clear()
        self._context = pack(context, self._space, f"context-{self._run}")

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
            inputs = {ref.name: self._names[ref.name] for job in jobs for ref in job.refs()}
            cells = tuple(Cell() for _ in jobs)
            order = Order(self._count, self._call[0], self._run, jobs, pickled, inputs, cells)
            for job, cell in zip(jobs, cells, strict=True):
                self._name(job.name, Name(cell))
            order.missing = len(inputs)
            for held in inputs.values():
                held.cell.holders += 1
                when_there(held, lambda: self._one_less(order))
            if not inputs:
                self._ready.push(order)
            self._dispatch()

    def move(self, ref: Ref, home: str, name: str) -> None:
        with self._changed:
            cell, part = self._names[ref.name]
            cell.holders += 1
            self._name(name, Name(cell, part + ref.part))

    def either(self, new: Ref, old: Ref, name: str) -> None:
        with self._changed:
            known = [self._names[ref.name] for ref in (new, old)]
            parts = [Name(cell, part + ref.part) for (cell, part), ref in zip(known, (new, old), strict=True)]
            self._name(name, Name(choose(*parts)))

    def info(self, name: str) -> Info | None:
        return self._settled(self._names[name]).info()

    def read(self, ref: Ref) -> Any:
        return self._settled(self._names[ref.name]).value(ref.part)

    def drop(self, names: Iterable[str]) -> None:
        with self._changed:
            for name in names:
                held = self._names.pop(name, None)
                if held is None:
                    continue
                if name in self._untold:
                    self._dropped[name] = held
                if not self._stays(name, held):
                    held.cell.release()

    def finish(self, names: Iterable[str]) -> dict[str, Info | None]:
        infos = {}
        for name in names:
            held = self._names[name] if name in self._names else self._dropped[name]
            infos[name] = self._settled(held).info()
        with self._changed:
            for name in infos:
                if name in self._dropped and self._stays(name, held := self._dropped.pop(name)):
                    held.cell.release()
                self._untold.discard(name)
        return infos

    def save(self, names: Iterable[str], directory: Path) -> dict[str, str]:
        held = {name: self._names[name] for name in names}  # after an error, what is there can still be saved
        real = {name: x.real if x.cell.there else self._settled(x) for name, x in held.items()}
        return codecs.store_all({name: partial(x.save, directory) for name, x in real.items()})

    def load(self, files: Mapping[str, str], directory: Path) -> None:
        assert self._space is not None
        infos = {file: codecs.info(codecs.read(directory / file)) for file in files.values() if file}  # all are whole
        cells = {"": Cell(0, there=True)}
        with self._changed:
            for file, info in infos.items():
                self._count += 1
                path = self._space.copy(f"value-{self._count}", directory / file, self._budget.left)
                cells[file] = Cell(0, True, path, info, {(directory, ()): file})
                cells[file].count(self._budget, self._space.in_memory(path))
            for name, file in files.items():
                cells[file].holders += 1
                self._names[name] = Name(cells[file])

    def close(self) -> None:
        if self._space is None or os.getpid() != self._owner:  # a process forked off this one has no say
            return
        with self._changed:
            self._closing = True
            self._ready.clear()
            crew = list(self._crew.values())
        for hand in crew:
            hand.process.terminate()  # there is nothing that it could lose
        for hand in crew:
            try:
                hand.process.wait(5)
            except subprocess.TimeoutExpired:
                hand.process.kill()
        for thread in self._listeners:
            thread.join(5)
        self._space.remove()
        self._space, self._listeners = None, []
        self._forget()
        atexit.unregister(self.close)

    def _settled(self, held: Name) -> Name:
        """Where a value is, once it is there."""
        self._wait(lambda: held.cell.there)
        return held.real

    def _name(self, name: str, held: Name) -> None:
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

    # -- the crew; all but `_listen` with the lock held ---------------------------------------------------------------

    def _hire(self, number: int) -> None:
        assert self._space is not None
        hand = self._crew[number] = Hand(number, self._threads, self._space)
        self._listeners.append(threading.Thread(target=self._listen, args=(hand,), daemon=True))
        self._listeners[-1].start()

    def _listen(self, hand: Hand) -> None:
        """The thread of one worker, from its first reply to its end."""
        reply: Reply | None = Reply()
        while reply is not None:
            reply = hand.hear()
            with self._changed:
                try:
                    self._bury(hand) if reply is None else self._take(hand, reply)
                    self._dispatch()
                except Exception as error:
                    self._fail(error)
                self._changed.notify_all()

    def _dispatch(self) -> None:
        for hand in self._crew.values():
            if hand.ready and hand not in self._at and (order := self._ready.pop()):
                room = self._budget.promise(hand, len(self._crew) - len(self._at))
                self._at[hand] = order
                real = {name: held.real for name, held in order.inputs.items()}
                files = {name: (cell.file, part) for name, (cell, part) in real.items()}
                hand.send(pickle.dumps((self._context, order.files, files, order.pickled, room)))

    def _someone_came(self) -> None:
        with self._changed:
            if not self._closing:
                self._dispatch()

    def _one_less(self, order: Order) -> None:
        order.missing -= 1
        if not order.missing:
            self._ready.push(order)

    def _take(self, hand: Hand, reply: Reply) -> None:
        order = self._at.pop(hand, None)
        self._budget.redeem(hand)
        if order is None:  # it says that it is ready
            hand.ready, self._stillborn = True, 0
        elif order.run != self._run:  # a run that was given up
            self._discard(order)
        elif reply.failure is not None:
            self._fail(order.error(reply.failure))
        else:
            for cell, result in zip(order.cells, reply.results, strict=True):
                cell.fill(result, self._budget)
                self._reports.append(result.done)
            for used, _ in order.inputs.values():
                used.release()

    def _bury(self, hand: Hand) -> None:
        """Another takes the number of a worker that died, and its job goes back to its place in the queue."""
        how, order = hand.end(), self._at.pop(hand, None)
        self._budget.redeem(hand)
        del self._crew[hand.number]
        if self._closing:
            return
        if order is not None:
            self._discard(order)
        if order is not None and order.run == self._run:
            order.deaths += 1
            if order.deaths < TRIES:
                self._ready.push(order)
            else:
                told = f"{order.title} failed: a worker process died over it {TRIES} times, the last {how}"
                self._fail(TaskError(f"{told}; memory may be short, so try fewer workers or smaller batches"))
        if not hand.ready:
            self._stillborn += 1
        if self._stillborn >= TRIES:
            raise TaskError(f"worker processes end {how} before they begin; engine.name = 'inline' works without them")
        self._hire(hand.number)

    def _discard(self, order: Order) -> None:
        assert self._space is not None
        for file in order.files:
            self._space.discard(file)

    def _fail(self, error: Exception) -> None:
        """The first error counts: whoever waits raises it, and nothing more is begun."""
        self._error = self._error or error
        self._ready.clear()
