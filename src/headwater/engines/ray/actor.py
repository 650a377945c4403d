"""A worker on Ray. It keeps nothing that is not sent to it again if it has to be replaced: only the data of a run."""

from __future__ import annotations

import gc
import os
import pickle
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from headwater.core import serialization
from headwater.engines.base import LOST, Job
from headwater.engines.ray.store import Outline, Packed, outline, packed, unpacked
from headwater.engines.workers.shared_memory import Reply, Result, joined
from headwater.engines.workers.worker import carried_out, failure_of, fetching

SpillCache = list[Packed | None]  # what one call made, in one object: each object costs Ray about as much as a call
Part = tuple[int | None, int, tuple[Any, ...]]  # which shelf (none: the value was lost), its place there, and what part

Load = tuple[bytes, Mapping[str, Part]]  # the jobs of an order, pickled, and their inputs by name
Answer = tuple[Reply, SpillCache]


@dataclass(frozen=True)
class Made(Result):
    """One finished job. The value itself is another of the objects that the call gives."""

    outline: Outline | None = None


def versions() -> dict[str, str]:
    """What must be the same everywhere, or results would depend on where they were made."""
    return {name: version(name) for name in ("headwater", "torch", "numpy")}


class Actor:
    def __init__(self, number: int, threads: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process of the run
        torch.set_num_threads(threads)
        gc.freeze()  # the libraries stay, and need not be looked through for garbage again and again
        self.number = number

    def take_up(self, parts: Packed) -> tuple[int, dict[str, str], Reply]:
        """The data of a run; it lies in the store of this node, once for all workers there."""
        try:
            self._context, reply = joined(unpacked(parts)), Reply()
        except Exception as error:
            reply = Reply(failure=failure_of(error))
        return os.getpid(), versions(), reply

    def carry_out(self, loads: Sequence[Load], *shelves: SpillCache) -> tuple[list[Reply], SpillCache]:
        """A reply to each of some orders, and what they made, in turn."""
        answers = [self._one(pickle.loads(jobs), inputs, shelves) for jobs, inputs in loads]
        return [reply for reply, _ in answers], [made for _, objects in answers for made in objects]

    def _one(self, jobs: tuple[Job, ...], inputs: Mapping[str, Part], shelves: Sequence[SpillCache]) -> Answer:
        """Whatever goes wrong is part of the reply: a worker outlives its jobs."""

        def read(key: str) -> Any:
            shelf, at, _ = inputs[key]
            held = None if shelf is None else shelves[shelf][at]
            return LOST if held is None else unpacked(held)

        try:
            fetch = fetching(jobs, read, lambda key: inputs[key][2])
            found, done = carried_out(jobs, self._context, fetch, self.number)
            objects = [None if value is LOST else packed(value) for value in found]
            results = [
                Made() if held is None else Made(serialization.info(value), outline=outline(held))
                for value, held in zip(found, objects, strict=True)
            ]
            return Reply(tuple(results), done), objects
        except BaseException as error:
            return Reply(failure=failure_of(error)), [None for _ in jobs]
