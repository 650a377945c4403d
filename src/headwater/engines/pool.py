"""Worker processes on this machine; values are files in shared memory, so that a move is only another name.

A thread for each worker takes its replies and hands it the next job. A worker that dies is replaced and its job
repeated.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core import serialization
from headwater.core.serialization import Info
from headwater.engines.availability import Presence
from headwater.engines.base import Ref, pick
from headwater.engines.workers.engine import TRIES, WorkerEngine
from headwater.engines.workers.process import Hand
from headwater.engines.workers.scheduler import Kept, Order
from headwater.engines.workers.shared_memory import Reply, Space, pack
from headwater.engines.workers.spill_cache import Budget, budget_of
from headwater.errors import TaskError
from headwater.tasks.task import RunContext


@dataclass(frozen=True)
class File:
    """A value as a file, with what it takes of the memory that there is for files."""

    path: Path
    budget: Budget
    bytes: int

    @staticmethod
    def counted(path: Path, budget: Budget, bytes: int) -> File:
        budget.used += bytes
        return File(path, budget, bytes)

    def value(self) -> Any:
        return serialization.read(self.path)

    def info(self, part: tuple[Any, ...]) -> Info:
        return serialization.info(pick(self.value(), Ref("", "", part)))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.budget.used -= self.bytes


class Pool(WorkerEngine):
    def __init__(self, workers: int, threads: int = 1, memory: float = 0.0) -> None:
        self._workers, self._threads, self._memory = workers, threads, budget_of(memory)
        self._space: Space | None = None  # there is one from the first `start` to `close`
        self._crew: dict[int, Hand] = {}
        self._at: dict[Hand, Order] = {}  # what each is busy with
        self._listeners: list[threading.Thread] = []
        super().__init__()

    def _forget(self, presence: Presence | None = None) -> None:
        super()._forget(presence)
        self._budget = Budget(self._memory)

    # -- what the federation calls, in one thread -------------------------------------------------------------------

    def start(self, context: RunContext) -> None:
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
                files = {name: (_path(cell.kept), part) for name, (cell, part) in real.items()}
                hand.send(pickle.dumps((self._context, order.files, files, order.pickled, room)))

    def _take_up(self, path: Path) -> File:
        assert self._space is not None
        self._count += 1
        copy = self._space.copy(f"value-{self._count}", path, self._budget.left)
        return File.counted(copy, self._budget, self._space.in_memory(copy))

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
                file = None if result.file is None else File.counted(result.file, self._budget, result.memory)
                cell.fill(file, result.info)
            assert reply.done is not None
            self._reports.append(reply.done)
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
            self._died_over(order, how)
        if not hand.ready:
            self._stillborn += 1
        if self._stillborn >= TRIES:
            raise TaskError(f"worker processes end {how} before they begin; engine.name = 'inline' works without them")
        self._hire(hand.number)

    def _discard(self, order: Order) -> None:
        assert self._space is not None
        for file in order.files:
            self._space.discard(file)


def _path(kept: Kept | None) -> Path | None:
    return kept.path if isinstance(kept, File) else None
