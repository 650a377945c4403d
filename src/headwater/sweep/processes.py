"""The worker processes that train cells, seen from the process that starts them."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from headwater.engines.workers.process import ChildProcess
from headwater.sweep import Cell, CellOutcome, DataSummary

PATIENCE = 20.0  # seconds for workers to save their last state after Ctrl-C
Watch = Callable[[Cell, str, Any], None]  # cell; "begin", "round" or "end"; None, (round, rounds) or CellOutcome
Request = tuple[Any, ...]  # what a worker has to do, and the arguments; see `headwater.sweep.cell_worker`
Handler = Callable[[int, str, Any], None]  # number of a request; kind of a message, or "died"; its contents


class CellProcess(ChildProcess):
    """A worker.

    Attributes:
        request: number of the request that it is busy with; None if it is idle.
        training: whether it has said that training has begun, so that it has state to save.
    """

    def __init__(self, threads: int) -> None:
        super().__init__("headwater.sweep.cell_worker", threads=threads)
        self.request: int | None = None
        self.training = False


class SweepWorkers:
    """Worker processes for cells. They are started on demand, and end with the `with` block.

    Args:
        workers: largest number of processes.
        threads: threads of each.
    """

    def __init__(self, workers: int, threads: int = 1) -> None:
        self._most, self._threads = workers, threads
        self._workers: list[CellProcess] = []

    def __len__(self) -> int:
        return self._most

    def __enter__(self) -> SweepWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all workers. Those that train get time to save their state; the others have none."""
        training = [worker for worker in self._workers if worker.training]
        until = time.monotonic() + PATIENCE
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C ends the waiting
            for worker in training:
                worker.process.send_signal(signal.SIGINT)
                worker.pipe.close()
            for worker in [worker for worker in self._workers if not worker.training]:
                worker.end()  # before it begins with its request
            for worker in training:
                worker.process.wait(max(0.0, until - time.monotonic()))
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def sizes(self, sections: Iterable[tuple[Mapping[str, Any], bool]]) -> list[DataSummary]:
        """Measure data sets. Workers read them, and keep some of them in memory for cells.

        Args:
            sections: keys of a `data` section, and whether its reference set is meant instead of the clients' data.
        """
        requests = [("measure", dict(section), reference) for section, reference in sections]
        died = DataSummary(wrong="the process that read this data died; is there enough memory?")
        summaries = [died] * len(requests)

        def handle(number: int, kind: str, contents: Any) -> None:
            if kind == "measure":
                summaries[number] = contents

        self._work(requests, handle)
        return summaries

    def train(self, cells: Sequence[Cell], watch: Watch) -> list[CellOutcome]:
        """Train every cell to its end, several at once, the longest first.

        Args:
            cells: unfinished cells.
            watch: called when a cell begins, after rounds, and when it ends.

        Returns:
            One outcome per cell.
        """
        order = sorted(range(len(cells)), key=lambda at: -cells[at].weight)
        requests = [("train", cells[at].config.tree(), cells[at].path) for at in order]
        outcomes = [CellOutcome() for _ in cells]

        def handle(number: int, kind: str, contents: Any) -> None:
            cell = cells[order[number]]
            if kind == "died":
                contents = CellOutcome(f"the process that trained this died {contents}; is there enough memory?", True)
            if kind in ("train", "died"):
                outcomes[order[number]] = contents
                watch(cell, "end", contents)
            else:
                watch(cell, kind, contents)

        self._work(requests, handle)
        return outcomes

    def _work(self, requests: Sequence[Request], handle: Handler) -> None:
        waiting = list(enumerate(requests))[::-1]
        while len(self._workers) < min(self._most, len(requests)):
            self._workers.append(CellProcess(self._threads))
        for worker in self._workers:
            self._send_next(worker, waiting, handle)
        while busy := [worker for worker in self._workers if worker.request is not None]:
            ready = wait([worker.pipe for worker in busy])
            for worker in [worker for worker in busy if worker.pipe in ready]:
                self._receive(worker, waiting, handle)

    def _receive(self, worker: CellProcess, waiting: list[tuple[int, Request]], handle: Handler) -> None:
        number, message = worker.request, worker.receive()
        assert number is not None
        if message is None:
            how = worker.end()
            self._workers.remove(worker)
            handle(number, "died", how)
            if waiting:
                worker = CellProcess(self._threads)
                self._workers.append(worker)
                self._send_next(worker, waiting, handle)
        elif message[0] == "training":
            worker.training = True
        elif message[0] == "round":
            handle(number, "round", message[1:])
        else:
            worker.request, worker.training = None, False
            handle(number, message[0], message[1])
            self._send_next(worker, waiting, handle)

    def _send_next(self, worker: CellProcess, waiting: list[tuple[int, Request]], handle: Handler) -> None:
        if waiting:
            worker.request, request = waiting.pop()
            worker.send(request)
            handle(worker.request, "begin", None)
