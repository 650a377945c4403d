"""Workers on a Ray cluster: actors, on this machine or on many; values are objects of Ray's object store.

This process holds references and never the values, so a model goes from the node that computed it to the node that
needs it. If a node offers a sector's resource, the tasks of that sector run there, and the models of its clients stay
in that node's store. A worker that dies is replaced and its jobs are repeated. If a node is lost, the values there that
are still needed are computed once more, with the same bits.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.core import serialization
from headwater.engines.availability import Availability
from headwater.engines.base import Files, Infos
from headwater.engines.jobs import Ref
from headwater.engines.ray.actor import ActorHandle, Call, CallOutcome, death_reason
from headwater.engines.ray.cluster import Cluster, Node, gpu_shares, import_ray, join, leave
from headwater.engines.ray.object_store import RayValue, outline, packed
from headwater.engines.ray.recovery import Recovery
from headwater.engines.workers.engine import MAX_DEATHS, WorkerEngine
from headwater.engines.workers.scheduler import ValueView, WorkItem, views_of
from headwater.engines.workers.shared_memory import context_to_tensors
from headwater.errors import ConfigError, TaskError, said
from headwater.registry import Info
from headwater.tasks.task import RunContext

if TYPE_CHECKING:
    from headwater.config.sections import EngineConfig
    from headwater.engines.workers.worker import Reply

QUICK = 0.03  # seconds; a worker with less work than this gets its next call in advance, so that it is not idle

T = TypeVar("T")


class Ray(WorkerEngine):
    """Engine with workers on a Ray cluster.

    Args:
        workers: 0 for as many as the cluster has CPUs.
        threads: torch threads of every task. Results may depend on it in the last digits.
        memory: megabytes of the object store, if this engine starts the cluster; 0 for Ray's default.
        address: of an existing cluster, as host:port, or "auto"; without it one is started on this machine.
    """

    INFO = Info("ray", "workers on a Ray cluster, on this machine or on many")

    def __init__(self, workers: int = 0, threads: int = 1, memory: float = 0.0, address: str = "") -> None:
        self._worker_count, self._threads, self._memory, self._address = workers, threads, memory, address
        self._cluster: Cluster | None = None  # from the first `start` to `close`
        self._workers: dict[int, ActorHandle] = {}
        self._dead: set[str] = set()  # nodes
        super().__init__()

    @classmethod
    def from_config(cls, options: EngineConfig, workers: int) -> Ray:
        """Use `options.workers`, since 0 stands for the CPUs of the cluster and not of this machine."""
        return cls(options.workers, options.threads, options.memory, options.address)

    def _reset(self, availability: Availability | None = None) -> None:
        super()._reset(availability)
        self._recovery = Recovery(self._ready, self._dead)
        self._durations: dict[str, float] = {}  # task → seconds of its last execution
        self._sector_of: Mapping[str, str] = {}

    # -- the contract of engines; called in one thread ----------------------------------------------------------------

    def start(self, context: RunContext) -> None:
        tensors = context_to_tensors(context)
        self._ray = import_ray()
        if self._cluster is None:
            self._cluster, self._owner, self._closing = join(self._address, self._memory), os.getpid(), False
            self._outcomes: queue.SimpleQueue[CallOutcome | None] = queue.SimpleQueue()
            self._listener = threading.Thread(target=self._listen, args=(self._outcomes,), daemon=True)
            self._listener.start()
        with self._changed:
            self._ready.clear()
            self._reset(Availability(context))
            self._run += 1
            self._sector_of, self._gpus = context.sector_of, context.device.type == "cuda"
            self._context: Any = self._ray.put(packed(tensors))
            self._here = self._ray.get_runtime_context().get_node_id()
            if not self._workers:
                self._start_workers()
            for worker in self._workers.values():
                worker.send_context(self._context, self._run)
        self.done.clear()

    def read(self, ref: Ref) -> Any:
        view = self._available(self._view(ref))
        return self._get([view], lambda: view.value(ref.part))

    def save(self, names: Iterable[str], directory: Path) -> Files:
        names = list(names)
        views = [view for name in names for view in views_of(self._names[name])]
        resolved = [x.resolved if x.slot.available else self._available(x) for x in views]
        return self._get(resolved, lambda: super(Ray, self).save(names, directory))

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        infos = super().finish(names)
        with self._changed:
            slots = [view.resolved.slot for named in self._names.values() for view in views_of(named)]
        self._recovery.copy_deep(slots, self._here, self._changed)
        return infos

    def close(self) -> None:
        if self._cluster is None or os.getpid() != self._owner:  # a forked process must not leave the cluster
            return
        with self._changed:
            self._closing = True
            self._ready.clear()
            workers, self._workers = list(self._workers.values()), {}
        self._outcomes.put(None)
        self._listener.join(10)
        for worker in workers:
            self._ray.kill(worker.actor)  # it has no state to save
        cluster, self._cluster, self._context = self._cluster, None, None
        self._reset()
        leave(cluster)

    def _get(self, views: Sequence[ValueView], get: Callable[[], T]) -> T:
        """Call `get`, which reads these values. Values that were lost with a node are recomputed first."""
        slots = [view.slot for view in views]
        for attempt in range(MAX_DEATHS + 1):
            with self._changed:
                for slot in slots:
                    if self._recovery.is_lost(slot):
                        self._recovery.recompute(slot)
                self._dispatch()
            if not all(slot.available for slot in slots):
                self._wait(lambda: all(slot.available for slot in slots))
            nodes = {stored.node for slot in slots if isinstance(stored := slot.stored, RayValue)}
            try:
                return get()
            except self._ray.exceptions.ObjectLostError as error:
                with self._changed:
                    if attempt == MAX_DEATHS or not self._recovery.any_dead(nodes):
                        raise TaskError(f"a value was lost: {said(error)}; carry on with headwater resume") from error
        raise AssertionError

    # -- scheduling; with the lock held -------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Send one call to every idle worker, then one more to those that will be idle in a moment.

        The items of a sector go to the nodes that offer it, if there are any.
        """
        offered = {sector for worker in self._workers.values() for sector in worker.node.sectors}
        for most in (1, 2):
            for worker in self._workers.values():
                elsewhere = offered - worker.node.sectors
                fits = partial(self._fits, elsewhere) if elsewhere else None
                while worker.ready and len(worker.calls) < most and self._idle_soon(worker):
                    if not (call := self._next_call(fits)):
                        break
                    worker.send(call, self._run)

    def _idle_soon(self, worker: ActorHandle) -> bool:
        return not worker.calls or sum(map(self._expected_seconds, worker.calls[0])) < QUICK

    def _expected_seconds(self, item: WorkItem) -> float:
        """Duration of the last execution of its task. An unknown task, or one that killed a worker, counts as QUICK."""
        return QUICK if item.deaths else self._durations.get(item.jobs[0].title, QUICK)

    def _next_call(self, fits: Callable[[WorkItem], bool] | None) -> Call:
        """The next item; several if they are quick and there are more than enough for all workers."""
        call: list[WorkItem] = []
        seconds, share = 0.0, len(self._ready) // (2 * len(self._workers))
        while (not call or len(call) < share) and (item := self._ready.pop(fits)):
            seconds += self._expected_seconds(item)
            if call and seconds >= QUICK:
                self._ready.push(item)
                break
            if self._recovery.inputs_available(item):
                call.append(item)
        return tuple(call)

    def _fits(self, elsewhere: set[str], item: WorkItem) -> bool:
        home = item.jobs[0].home
        return self._sector_of.get(home, home) not in elsewhere

    def _store_file(self, path: Path) -> RayValue:
        value = packed(serialization.read(path))
        return RayValue(self._ray.put([value]), 0, self._here, outline(value))

    # -- workers; all but `_listen` with the lock held ----------------------------------------------------------------

    def _start_workers(self) -> None:
        assert self._cluster is not None
        nodes = self._cluster.place_workers(self._worker_count, self._threads)
        self._shares = gpu_shares([node.id for node in nodes]) if self._gpus else {}
        for node in nodes:
            self._start_worker(len(self._workers), node)

    def _start_worker(self, number: int, node: Node) -> None:
        assert self._cluster is not None
        options = self._cluster.actor_options(self._threads) | {"num_gpus": self._shares.get(node.id, 0)}
        self._workers[number] = ActorHandle.start(number, node, self._threads, options, self._outcomes)

    def _listen(self, outcomes: queue.SimpleQueue[CallOutcome | None]) -> None:
        """The thread that handles the outcomes of calls."""
        while (outcome := outcomes.get()) is not None:
            with self._changed:
                try:
                    if not self._closing and self._workers.get(outcome.worker.number) is outcome.worker:
                        self._handle(outcome)
                        self._dispatch()
                except Exception as error:
                    self._fail(error)
                self._changed.notify_all()

    def _handle(self, outcome: CallOutcome) -> None:
        error = outcome.future.exception()
        if error is not None and not isinstance(error, self._ray.exceptions.RayTaskError):
            self._replace(outcome.worker, error)
        elif outcome.run != self._run:  # the call belongs to an abandoned run
            return
        elif not outcome.call:
            outcome.worker.set_ready(*outcome.future.result())
            self._failed_starts = 0
        elif error is None:
            outcome.worker.calls.remove(outcome.call)
            first = 0
            for item, reply in zip(outcome.call, outcome.future.result(), strict=True):
                self._receive(outcome.worker, item, reply, outcome.batch, first)
                first += len(item.jobs)
        else:
            outcome.worker.calls.remove(outcome.call)
            if isinstance(error.cause, self._ray.exceptions.ObjectLostError) and self._recovery.any_dead(outcome.nodes):
                for item in outcome.call:
                    self._ready.push(item)
            else:
                self._fail(TaskError(f"{outcome.call[0].title} failed: {said(error.cause or error)}"))

    def _receive(self, worker: ActorHandle, item: WorkItem, reply: Reply, batch: Any, first: int) -> None:
        """Take the results of one item, whose values begin at index `first` of the batch."""
        if reply.failure is not None:
            self._fail(reply.failure.exception(item.title))
            return
        assert reply.done is not None
        self._durations[item.jobs[0].title] = reply.done.end - reply.done.start
        inputs, repeated = item.inputs, self._recovery.repeated
        remote = worker.node.id != self._here  # values on this node are lost only with this process
        if remote:
            self._recovery.remember(item)
        if item not in repeated:
            self._reports.append(reply.done)
        results: Any = reply.results
        for index, (slot, result) in enumerate(zip(item.slots, results, strict=True), first):
            if not slot.available:  # available ones were not lost: only others of their group are recomputed
                info = result.info
                stored = None if info is None else RayValue(batch, index, worker.node.id, result.outline)
                slot.producer = item if remote else None
                slot.backup = stored if item in repeated and not slot.producer else None
                slot.fill(stored, info)
        for slot, _ in inputs.values():
            slot.release()
        if remote:
            item.slots = ()
        repeated.discard(item)

    def _replace(self, worker: ActorHandle, error: BaseException) -> None:
        """Start another worker in place of one that died, if its node lives; its items go back into the queue."""
        assert self._cluster is not None
        self._ray.kill(worker.actor)  # the actor may still be alive but unreachable
        del self._workers[worker.number]
        self._recovery.update_dead()
        if not worker.ready and worker.node.id not in self._dead:
            self._failed_starts += 1
        if self._failed_starts >= MAX_DEATHS:
            raise ConfigError(
                f"workers on Ray exit while they start ({death_reason(error)}); check that headwater[ray] is installed "
                "on every node, or use --engine pool"
            )
        for position, call in enumerate(worker.calls):
            for item in call:
                if position or worker.node.id in self._dead:
                    self._ready.push(item)
                else:  # from now on it is sent alone, to find out which item kills workers
                    self._worker_died(item, f"because {death_reason(error)}")
        if worker.node.id not in self._dead:
            self._start_worker(worker.number, worker.node)
            self._workers[worker.number].send_context(self._context, self._run)
        elif not self._workers:
            self._start_workers()
            for each in self._workers.values():
                each.send_context(self._context, self._run)
