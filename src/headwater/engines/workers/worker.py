"""A worker process of the pool: takes a job, carries it out, says where the value is, and so on until the pool is gone.

Standard input tells it so: nothing ever comes in there, and it ends when the process that started this one does,
however that went. The last thing a worker then does is to remove the directories that the pool no longer can.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import torch

from headwater.core import serialization
from headwater.engines.base import LOST, Done, Job, Ref, pick
from headwater.engines.execution import execute, execute_together
from headwater.engines.workers.shared_memory import Failure, Reply, Result, Space, unpack
from headwater.errors import TaskError, UserError
from headwater.tasks.task import RunContext


class Worker:
    def __init__(self, number: int, space: Space) -> None:
        self.number, self.space = number, space
        self._taken_up: Path | None = None

    def reply(self, message: bytes) -> Reply:
        """Carry out what a message asks for. Whatever goes wrong is part of the reply: a worker outlives its jobs."""
        try:
            context, names, files, jobs, self._room = pickle.loads(message)
            return self._carry_out(pickle.loads(jobs), self._context(context), names, files)
        except BaseException as error:
            return Reply(failure=failure_of(error))

    def _context(self, path: Path) -> RunContext:
        if path != self._taken_up:
            self._current, self._taken_up = unpack(path), path
        return self._current

    def _carry_out(
        self, jobs: tuple[Job, ...], context: RunContext, names: list[str], files: dict[str, tuple[Path | None, Any]]
    ) -> Reply:
        def read(key: str) -> Any:
            file, _ = files[key]
            return LOST if file is None else serialization.read(file)

        found, done = carried_out(jobs, context, fetching(jobs, read, lambda key: files[key][1]), self.number)
        return Reply(tuple(self._result(name, value) for name, value in zip(names, found, strict=True)), done)

    def _result(self, name: str, value: Any) -> Result:
        if value is LOST:
            return Result()
        file = self.space.write(name, value, self._room)
        taken = self.space.in_memory(file)
        self._room -= taken
        return Result(serialization.info(value), file, taken)


def fetching(
    jobs: Sequence[Job], read: Callable[[str], Any], part: Callable[[str], tuple[Any, ...]]
) -> Callable[[Ref], Any]:
    """Fetches inputs of some jobs: the value under a key, and what part of it the key stands for. What several jobs
    have in common, as after a broadcast, is read once."""
    count = Counter(ref.key for job in jobs for ref in job.refs()) if len(jobs) > 1 else Counter()
    known: dict[str, Any] = {}

    def fetch(ref: Ref) -> Any:
        key = ref.key
        value = known[key] if key in known else read(key)
        if count[key] > 1:
            known[key] = value
        return pick(value, Ref("", "", part(key) + ref.part))

    return fetch


def carried_out(
    jobs: tuple[Job, ...], context: RunContext, fetch: Callable[[Ref], Any], number: int
) -> tuple[list[Any], Done]:
    """What one order asks for: a job, or several as one. Values in the order of the jobs, and the report."""
    if len(jobs) == 1:
        value, done = execute(jobs[0], context, fetch, lambda ref: None, number)
        return [value], done
    found, done = execute_together(jobs, context, fetch, number)
    return [found[job.node] for job in jobs], done


def failure_of(error: BaseException) -> Failure:
    return Failure(_pickled(error), f"{type(error).__name__}: {error}", traceback.format_exc())


def _pickled(error: BaseException) -> bytes:
    """An error that the pool raises as it is; any other becomes a TaskError there."""
    if isinstance(error, TaskError | UserError):
        try:  # type and arguments, since not every constructor takes back its own arguments
            return bytes(cloudpickle.dumps((type(error), error.args)))
        except Exception:
            pass
    return b""


def main(number: int, threads: int, pipe: int, folders: list[str]) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    os.set_inheritable(pipe, False)
    torch.set_num_threads(threads)
    space = Space([Path(folder) for folder in folders])
    threading.Thread(target=_follow, args=(space,), daemon=True).start()
    worker, pool = Worker(number, space), Connection(pipe)
    try:
        pool.send_bytes(pickle.dumps(Reply()))  # ready
        while True:
            pool.send_bytes(pickle.dumps(worker.reply(pool.recv_bytes())))
    except (EOFError, OSError):
        _leave(space)


def _follow(space: Space) -> None:
    os.read(0, 1)
    _leave(space)


def _leave(space: Space) -> NoReturn:
    space.remove()
    os._exit(0)
