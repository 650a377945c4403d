"""A worker on Ray: the actor, and the driver's handle to it.

An actor has no state but the data of the run, which is sent again to an actor that replaces it.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch

from headwater.core import serialization
from headwater.engines.jobs import LOST, Job
from headwater.engines.ray.cluster import Node, import_ray
from headwater.engines.ray.object_store import Batch, Outline, Packed, RayValue, outline, packed, unpacked
from headwater.engines.workers.scheduler import WorkItem
from headwater.engines.workers.shared_memory import context_from_tensors
from headwater.engines.workers.worker import Failure, Reply, Result, execute_jobs, fetcher, in_worker
from headwater.errors import ConfigError

Input = tuple[int | None, int, tuple[Any, ...]]  # which batch (None: the value was lost), its index there, which part
Load = tuple[bytes, Mapping[str, Input]]  # the jobs of a work item, pickled, and their inputs by key
Call = tuple[WorkItem, ...]  # items that are sent to a worker at a time


@dataclass(frozen=True)
class RayResult(Result):
    """Result of one job. The value itself is in the batch that the call returns beside the replies."""

    outline: Outline | None = None


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all nodes, since results could differ otherwise."""
    return {name: version(name) for name in ("headwater", "torch", "numpy")}


class Actor:
    """The worker itself; its methods are called remotely.

    Args:
        number: for reports.
        threads: torch threads of every task.
    """

    def __init__(self, number: int, threads: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process of the run handles Ctrl-C
        torch.set_num_threads(threads)
        gc.freeze()  # the garbage collector skips all imported modules
        self.number = number

    def load_context(self, tensors: Packed) -> tuple[int, dict[str, str], Reply]:
        """Take the data of a run from the object store of this node, where all workers share it.

        Returns:
            Process id, versions, and a reply that is empty or has a failure.
        """
        try:
            self._context, reply = in_worker(context_from_tensors(unpacked(tensors)), self.number), Reply()
        except Exception as error:
            reply = Reply(failure=Failure.of(error))
        return os.getpid(), versions(), reply

    def execute(self, loads: Sequence[Load], *batches: Batch) -> tuple[list[Reply], Batch]:
        """Execute work items one after the other.

        Args:
            loads: the items.
            *batches: the values that their inputs refer to.

        Returns:
            One reply per item, and all values in the order of items and jobs.
        """
        answers = [self._execute_item(pickle.loads(jobs), inputs, batches) for jobs, inputs in loads]
        return [reply for reply, _ in answers], [value for _, values in answers for value in values]

    def _execute_item(
        self, jobs: tuple[Job, ...], inputs: Mapping[str, Input], batches: Sequence[Batch]
    ) -> tuple[Reply, Batch]:
        """Any exception becomes part of the reply, so that the worker survives its jobs."""

        def read(key: str) -> Any:
            batch, index, _ = inputs[key]
            value = None if batch is None else batches[batch][index]
            return LOST if value is None else unpacked(value)

        try:
            fetch = fetcher(jobs, read, lambda key: inputs[key][2])
            values, done = execute_jobs(jobs, self._context, fetch, self.number)
            objects = [None if value is LOST else packed(value) for value in values]
            results = [
                RayResult() if each is None else RayResult(serialization.info(value), outline=outline(each))
                for value, each in zip(values, objects, strict=True)
            ]
            return Reply(tuple(results), done), objects
        except BaseException as error:
            return Reply(failure=Failure.of(error)), [None for _ in jobs]


@dataclass(frozen=True)
class CallOutcome:
    """A finished call of an actor.

    Args:
        worker: the actor that was called.
        run: number of the run.
        call: the items; empty for `load_context`.
        batch: reference to the values.
        nodes: where the inputs were.
        future: what the call returned, or the exception that Ray reports.
    """

    worker: ActorHandle
    run: int
    call: Call
    batch: Any
    nodes: frozenset[str]
    future: Any


@dataclass(eq=False)
class ActorHandle:
    """A worker, seen from the driver. It executes its calls one after the other.

    Args:
        number: its number among the workers.
        node: where it is.
        actor: Ray's handle.
        outcomes: queue that finished calls are put into, by a thread of Ray.
        ready: whether it has the data of the run.
        pid: its process id, once it is ready.
        calls: calls without an outcome yet; it is executing the first.
    """

    number: int
    node: Node
    actor: Any
    outcomes: queue.SimpleQueue[CallOutcome | None]
    ready: bool = False
    pid: int = 0
    calls: deque[Call] = field(default_factory=deque)

    @staticmethod
    def start(
        number: int,
        node: Node,
        threads: int,
        options: Mapping[str, Any],
        outcomes: queue.SimpleQueue[CallOutcome | None],
    ) -> ActorHandle:
        """Start an actor on a node, with these options of Ray."""
        ray = import_ray()
        placement = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = ray.remote(Actor).options(scheduling_strategy=placement, **options)
        return ActorHandle(number, node, actor.remote(number, threads), outcomes)

    def set_ready(self, pid: int, found: Mapping[str, str], reply: Reply) -> None:
        """Check what `load_context` returned.

        Raises:
            ConfigError: the data could not be loaded, or versions differ from those of this process.
        """
        self.pid = pid
        if reply.failure is not None:
            raise ConfigError(
                f"the data of the run cannot be taken up on a node of the Ray cluster: {reply.failure.summary}"
            )
        for name, mine in versions().items():
            if found.get(name) != mine:
                raise ConfigError(
                    f"{name} is {mine} here and {found.get(name)} on a node of the Ray cluster, so results could "
                    f"differ; install the same on every node"
                )
        self.ready = True

    def send_context(self, context: Any, run: int) -> None:
        """Send the data of a run. It finishes what it is executing first, and the outcome of that is ignored."""
        self.calls.clear()
        self.ready = False
        self._expect(run, (), self.actor.load_context.remote(context))

    def send(self, call: Call, run: int) -> None:
        """Send work items whose inputs are all available."""
        loads: list[Load] = []
        batches: dict[Any, int] = {}
        nodes: set[str] = set()
        for item in call:
            inputs: dict[str, Input] = {}
            for key, view in item.inputs.items():
                (slot, part), stored = view.resolved, view.resolved.slot.stored
                if slot.info is None:
                    inputs[key] = None, 0, part
                    continue
                assert isinstance(stored, RayValue), f"{key} is neither lost nor stored"  # never a wrong result
                nodes.add(stored.node)
                inputs[key] = batches.setdefault(stored.batch, len(batches)), stored.index, part
            loads.append((item.pickled, inputs))
        replies, batch = self.actor.execute.options(num_returns=2).remote(loads, *batches)
        self.calls.append(call)
        self._expect(run, call, replies, batch, frozenset(nodes))

    def _expect(
        self, run: int, call: Call, answer: Any, batch: Any = None, nodes: frozenset[str] = frozenset()
    ) -> None:
        def put(future: Any) -> None:
            self.outcomes.put(CallOutcome(self, run, call, batch, nodes, future))

        answer.future().add_done_callback(put)


def death_reason(error: BaseException) -> str:
    """Return why an actor died: the one telling line of Ray's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = next((line for line in reversed(lines) if "Error" in line.partition(":")[0]), lines[0] if lines else "")
    return line.rstrip(".") or type(error).__name__
