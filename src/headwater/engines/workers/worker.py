"""A worker process of the pool: receives jobs, executes them, writes their values to files and replies where they are.

When the parent process has ended, the workers remove the directories that it can no longer remove.
"""

from __future__ import annotations

import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from headwater.core import serialization
from headwater.core.serialization import ValueInfo
from headwater.engines.base import Done
from headwater.engines.execution import execute, execute_together
from headwater.engines.jobs import LOST, Job, Ref, pick
from headwater.engines.workers.shared_memory import SharedFiles, read_context
from headwater.errors import TaskError, UserError
from headwater.tasks import devices
from headwater.tasks.task import RunContext


@dataclass(frozen=True)
class Failure:
    """An exception in a worker, as it is sent to the process of the run.

    Args:
        error: type and arguments of a TaskError or UserError, pickled; empty for any other exception.
        summary: type and message.
        trace: the traceback.
    """

    error: bytes
    summary: str
    trace: str

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Describe the exception that is being handled."""
        pickled = b""
        if isinstance(error, TaskError | UserError):
            with suppress(Exception):  # type and arguments, since not every constructor accepts `args`
                pickled = bytes(cloudpickle.dumps((type(error), error.args)))
        return Failure(pickled, f"{type(error).__name__}: {error}", traceback.format_exc())

    def exception(self, title: str) -> Exception:
        """Return the exception to raise in the process of the run.

        Args:
            title: which job failed.
        """
        if self.error:
            kind, arguments = pickle.loads(self.error)
            error: Exception = kind.__new__(kind, *arguments)  # without __init__, whose parameters may be others
        else:
            error = TaskError(f"{title} failed: {self.summary}")
        if isinstance(error, TaskError):  # a user's mistake is one sentence without a traceback
            error.add_note(f"In a worker process:\n{self.trace}")
        return error


@dataclass(frozen=True)
class Result:
    """Where the value of one job is; all fields are empty for a lost value.

    Args:
        info: size and kind.
        file: the file that holds it.
        memory: bytes of shared memory that the file takes.
    """

    info: ValueInfo | None = None
    file: Path | None = None
    memory: int = 0


@dataclass(frozen=True)
class Reply:
    """Answer of a worker: the results of its jobs and their report, or a failure. Empty when the worker is ready."""

    results: tuple[Result, ...] = ()
    done: Done | None = None
    failure: Failure | None = None


class PoolWorker:
    """The child's side of a worker process; see `headwater.engines.workers.start.ChildWorker`."""

    def __init__(self, send: Callable[[Reply], None], number: int, files: SharedFiles) -> None:
        self._send, self._number, self._files = send, number, files
        self._context_path: Path | None = None

    def begin(self) -> None:
        self._send(Reply())

    def handle(self, message: Any) -> None:
        """Execute jobs. Any exception becomes part of the reply, so that the worker survives its jobs."""
        try:
            context, names, inputs, jobs, self._room = message
            reply = self._execute(pickle.loads(jobs), self._read_context(context), names, inputs)
        except BaseException as error:
            reply = Reply(failure=Failure.of(error))
        self._send(reply)

    def leave(self) -> None:
        self._files.remove()

    def _read_context(self, path: Path) -> RunContext:
        if path != self._context_path:
            self._context, self._context_path = in_worker(read_context(path), self._number), path
        return self._context

    def _execute(
        self, jobs: tuple[Job, ...], context: RunContext, names: list[str], inputs: dict[str, tuple[Path | None, Any]]
    ) -> Reply:
        def read(key: str) -> Any:
            path, _ = inputs[key]
            return LOST if path is None else serialization.read(path)

        values, done = execute_jobs(jobs, context, fetcher(jobs, read, lambda key: inputs[key][1]), self._number)
        return Reply(tuple(self._write(name, value) for name, value in zip(names, values, strict=True)), done)

    def _write(self, name: str, value: Any) -> Result:
        if value is LOST:
            return Result()
        path = self._files.write(name, value, self._room)
        memory = self._files.in_memory(path)
        self._room -= memory
        return Result(serialization.info(value), path, memory)


def open_worker(send: Callable[[Reply], None], number: str, threads: str, *folders: str) -> PoolWorker:
    """Called by `headwater.engines.workers.start` in the new process."""
    torch.set_num_threads(int(threads))
    return PoolWorker(send, int(number), SharedFiles([Path(folder) for folder in folders]))


def in_worker(context: RunContext, number: int) -> RunContext:
    """The context of a run with the device of this worker, which the whole process is set up for from now on."""
    if context.on_host:
        return context
    device = devices.of_worker(context.device, number)
    devices.settle(device, torch.get_num_threads())  # until the process ends
    return replace(context, device=device)


def fetcher(
    jobs: Sequence[Job], read: Callable[[str], Any], part: Callable[[str], tuple[Any, ...]]
) -> Callable[[Ref], Any]:
    """Return a function that fetches the inputs of some jobs. Inputs that they share are read once.

    Args:
        jobs: the jobs of one work item.
        read: returns the stored value for the key of a ref.
        part: returns which part of the stored value the key stands for.
    """
    count = Counter(ref.key for job in jobs for ref in job.refs()) if len(jobs) > 1 else Counter()
    known: dict[str, Any] = {}

    def fetch(ref: Ref) -> Any:
        key = ref.key
        value = known[key] if key in known else read(key)
        if count[key] > 1:
            known[key] = value
        return pick(value, Ref("", "", part(key) + ref.part))

    return fetch


def execute_jobs(
    jobs: tuple[Job, ...], context: RunContext, fetch: Callable[[Ref], Any], number: int
) -> tuple[list[Any], Done]:
    """Execute a job, or a group as one; return the values in the order of the jobs, and the report."""
    if len(jobs) == 1:
        value, done = execute(jobs[0], context, fetch, lambda ref: None, number)
        return [value], done
    values, done = execute_together(jobs, context, fetch, number)
    return [values[job.node] for job in jobs], done
