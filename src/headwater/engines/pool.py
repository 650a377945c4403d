"""Worker processes on this machine. Values are files in shared memory, so a move only adds a name for a file.

One thread per worker receives its replies and sends it the next job. A worker that dies is replaced and its job is
repeated.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core import serialization
from headwater.engines.availability import Availability
from headwater.engines.jobs import Ref, pick
from headwater.engines.workers.engine import MAX_DEATHS, WorkerEngine
from headwater.engines.workers.process import ChildProcess
from headwater.engines.workers.scheduler import StoredValue, WorkItem
from headwater.engines.workers.shared_memory import SharedFiles, write_context
from headwater.engines.workers.spill_cache import Budget, budget_of
from headwater.engines.workers.worker import Reply
from headwater.errors import TaskError
from headwater.registry import Info
from headwater.tasks.task import RunContext

if TYPE_CHECKING:
    from headwater.config.sections import EngineConfig


@dataclass(frozen=True)
class FileValue:
    """A value in a file; `bytes` counts towards the budget of shared memory."""

    path: Path
    budget: Budget
    bytes: int

    @staticmethod
    def counted(path: Path, budget: Budget, bytes: int) -> FileValue:
        """Return a file value whose bytes are charged to the budget."""
        budget.used += bytes
        return FileValue(path, budget, bytes)

    def value(self) -> Any:
        return serialization.read(self.path)

    def info(self, part: tuple[Any, ...]) -> serialization.ValueInfo:
        return serialization.info(pick(self.value(), Ref("", "", part)))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.budget.used -= self.bytes


class WorkerProcess(ChildProcess):
    """A worker of the pool, seen from the engine.

    Attributes:
        ready: whether it has started and waits for items.
        item: the item that it is executing.
    """

    def __init__(self, number: int, threads: int, files: SharedFiles) -> None:
        self.number, self.ready = number, False
        self.item: WorkItem | None = None
        folders = map(str, files.folders)
        super().__init__("headwater.engines.workers.worker", str(number), str(threads), *folders, threads=threads)


class Pool(WorkerEngine):
    """Engine with worker processes on this machine.

    Args:
        workers: number of processes.
        threads: torch threads of every task. Results may depend on it in the last digits.
        memory: megabytes of values in shared memory before others go to disk; 0 for a quarter of the memory.
    """

    INFO = Info("pool", "worker processes on this machine, one thread each")

    def __init__(self, workers: int, threads: int = 1, memory: float = 0.0) -> None:
        self._worker_count, self._threads, self._memory = workers, threads, budget_of(memory)
        self._files: SharedFiles | None = None  # from the first `start` to `close`
        self._workers: dict[int, WorkerProcess] = {}
        self._listeners: list[threading.Thread] = []
        super().__init__()

    @classmethod
    def from_config(cls, options: EngineConfig, workers: int) -> Pool:
        return cls(workers, options.threads, options.memory)

    def _reset(self, availability: Availability | None = None) -> None:
        super()._reset(availability)
        self._budget = Budget(self._memory)

    # -- the contract of engines; called in one thread ----------------------------------------------------------------

    def start(self, context: RunContext) -> None:
        with self._changed:
            if self._files is None:
                self._files, self._owner, self._closing = SharedFiles.create(), os.getpid(), False
                atexit.register(self.close)
            self._files.clear()
            self._ready.clear()
            self._reset(Availability(context))
            self._run += 1
            for number in set(range(self._worker_count)) - set(self._workers):
                self._start_worker(number)  # it imports while the data is written
        self.done.clear()
        self._context = write_context(context, self._files, f"context-{self._run}")

    def close(self) -> None:
        if self._files is None or os.getpid() != self._owner:  # a forked process must not remove the files
            return
        with self._changed:
            self._closing = True
            self._ready.clear()
            workers = list(self._workers.values())
        for worker in workers:
            worker.process.terminate()  # it has no state to save
        for worker in workers:
            try:
                worker.process.wait(5)
            except subprocess.TimeoutExpired:
                worker.process.kill()
        for thread in self._listeners:
            thread.join(5)
        self._files.remove()
        self._files, self._listeners = None, []
        self._reset()
        atexit.unregister(self.close)

    # -- workers; all but `_listen` with the lock held ----------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        assert self._files is not None
        worker = self._workers[number] = WorkerProcess(number, self._threads, self._files)
        self._listeners.append(threading.Thread(target=self._listen, args=(worker,), daemon=True))
        self._listeners[-1].start()

    def _listen(self, worker: WorkerProcess) -> None:
        """The thread of one worker, from its first reply to its end."""
        alive = True
        while alive:
            reply: Reply | None = worker.receive()
            alive = reply is not None
            with self._changed:
                try:
                    self._replace(worker) if reply is None else self._receive(worker, reply)
                    self._dispatch()
                except Exception as error:
                    self._fail(error)
                self._changed.notify_all()

    def _dispatch(self) -> None:
        for worker in self._workers.values():
            if worker.ready and worker.item is None and (item := self._ready.pop()):
                room = self._budget.reserve(worker, sum(each.item is None for each in self._workers.values()))
                worker.item = item
                views = {key: view.resolved for key, view in item.inputs.items()}
                inputs = {key: (_path(slot.stored), part) for key, (slot, part) in views.items()}
                worker.send((self._context, item.file_names, inputs, item.pickled, room))

    def _store_file(self, path: Path) -> FileValue:
        assert self._files is not None
        self._count += 1
        copy = self._files.copy(f"value-{self._count}", path, self._budget.free)
        return FileValue.counted(copy, self._budget, self._files.in_memory(copy))

    def _receive(self, worker: WorkerProcess, reply: Reply) -> None:
        item, worker.item = worker.item, None
        self._budget.release(worker)
        if item is None:  # it reports that it is ready
            worker.ready, self._failed_starts = True, 0
        elif item.run != self._run:  # the item belongs to an abandoned run
            self._discard(item)
        elif reply.failure is not None:
            self._fail(reply.failure.exception(item.title))
        else:
            for slot, result in zip(item.slots, reply.results, strict=True):
                file = None if result.file is None else FileValue.counted(result.file, self._budget, result.memory)
                slot.fill(file, result.info)
            assert reply.done is not None
            self._reports.append(reply.done)
            for slot, _ in item.inputs.values():
                slot.release()

    def _replace(self, worker: WorkerProcess) -> None:
        """Start another worker in place of one that died; its item goes back to its place in the queue."""
        how, item = worker.end(), worker.item
        worker.item = None
        self._budget.release(worker)
        del self._workers[worker.number]
        if self._closing:
            return
        if item is not None:
            self._discard(item)
        if item is not None and item.run == self._run:
            self._worker_died(item, how)
        if not worker.ready:
            self._failed_starts += 1
        if self._failed_starts >= MAX_DEATHS:
            raise TaskError(f"worker processes end {how} before they begin; engine.name = 'inline' works without them")
        self._start_worker(worker.number)

    def _discard(self, item: WorkItem) -> None:
        assert self._files is not None
        for name in item.file_names:
            self._files.discard(name)


def _path(stored: StoredValue | None) -> Path | None:
    return stored.path if isinstance(stored, FileValue) else None
