"""The processes that train cells, seen from the one that starts them."""

from __future__ import annotations

import pickle
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from headwater.engines.workers.process import Process
from headwater.sweep import Cell, Ended, Size

PATIENCE = 20.0  # seconds for workers to leave their last state after Ctrl-C
Watch = Callable[[Cell, str, Any], None]  # the cell, "begin", "round" or "end", and (done, of) or how it ended
Job = tuple[Any, ...]


class Worker(Process):
    def __init__(self, threads: int) -> None:
        super().__init__("headwater.sweep.worker", [], threads)
        self.at: int | None = None  # the number of the job that it is busy with
        self.trains = False  # and whether it has said that it has begun to train

    def hear(self) -> tuple[Any, ...] | None:
        """The next word; None if the process has died."""
        try:
            told: tuple[Any, ...] = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError, pickle.UnpicklingError):
            return None
        return told


class Crew:
    """So many workers, started when there is something to do, and gone at the end of the `with`."""

    def __init__(self, workers: int, threads: int = 1) -> None:
        self._most, self._threads = workers, threads
        self._workers: list[Worker] = []

    def __len__(self) -> int:
        return self._most

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Those that train are given time to leave their state; all others have nothing to lose."""
        training = [worker for worker in self._workers if worker.trains]
        until = time.monotonic() + PATIENCE
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # who asks twice does not want to wait
            for worker in training:
                worker.process.send_signal(signal.SIGINT)
                worker.pipe.close()
            for worker in [worker for worker in self._workers if not worker.trains]:
                worker.end()  # before it begins with what it was given
            for worker in training:
                worker.process.wait(max(0.0, until - time.monotonic()))
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def sizes(self, wanted: Iterable[tuple[Mapping[str, Any], bool]]) -> list[Size]:
        """Of the data, or of the reference sets, that data sections name. Workers read it, and keep some of it."""
        jobs = [("measure", dict(section), reference) for section, reference in wanted]
        found: list[Size] = [Size(wrong="the process that read this data died; is there enough memory?")] * len(jobs)

        def take(number: int, kind: str, told: Any) -> None:
            if kind == "measure":
                found[number] = told

        self._work(jobs, take)
        return found

    def train(self, cells: Sequence[Cell], watch: Watch) -> list[Ended]:
        """Each cell to its end, several at once, the longest first among those that are left."""
        order = sorted(range(len(cells)), key=lambda at: -cells[at].weight)
        jobs = [("train", cells[at].config.tree(), cells[at].path) for at in order]
        ended = [Ended() for _ in cells]

        def take(number: int, kind: str, told: Any) -> None:
            cell = cells[order[number]]
            if kind == "died":
                told = Ended(f"the process that trained this died {told}; is there enough memory?", ours=True)
            if kind in ("train", "died"):
                ended[order[number]] = told
                watch(cell, "end", told)
            else:
                watch(cell, kind, told)

        self._work(jobs, take)
        return ended

    def _work(self, jobs: Sequence[Job], take: Callable[[int, str, Any], None]) -> None:
        waiting = list(enumerate(jobs))[::-1]
        while len(self._workers) < min(self._most, len(jobs)):
            self._workers.append(Worker(self._threads))
        for worker in self._workers:
            self._give(worker, waiting, take)
        while busy := [worker for worker in self._workers if worker.at is not None]:
            ready = wait([worker.pipe for worker in busy])
            for worker in [worker for worker in busy if worker.pipe in ready]:
                self._listen(worker, waiting, take)

    def _listen(self, worker: Worker, waiting: list[tuple[int, Job]], take: Callable[[int, str, Any], None]) -> None:
        number, told = worker.at, worker.hear()
        assert number is not None
        if told is None:
            how = worker.end()
            self._workers.remove(worker)
            take(number, "died", how)
            if waiting:
                worker = Worker(self._threads)
                self._workers.append(worker)
                self._give(worker, waiting, take)
        elif told[0] == "trains":
            worker.trains = True
        elif told[0] == "round":
            take(number, "round", told[1:])
        else:
            worker.at, worker.trains = None, False
            take(number, told[0], told[1])
            self._give(worker, waiting, take)

    def _give(self, worker: Worker, waiting: list[tuple[int, Job]], take: Callable[[int, str, Any], None]) -> None:
        if waiting:
            worker.at, job = waiting.pop()
            worker.send(pickle.dumps(job))
            take(worker.at, "begin", None)
