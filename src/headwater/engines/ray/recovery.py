"""Recovery of values that were lost with a node of a Ray cluster: they are computed once more, with the same bits."""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any

from headwater.engines.ray.cluster import import_ray
from headwater.engines.ray.object_store import RayValue
from headwater.engines.workers.scheduler import ReadyQueue, ValueSlot, ValueView, WorkItem
from headwater.errors import TaskError

MAX_DEPTH = 40  # longest chain of work items to repeat for a lost value; values with longer chains are copied here
NOTICE = 10.0  # seconds that Ray may need to notice that the node of a missing value is gone


class Recovery:
    """Finds lost values of one run and puts their producers into the queue again.

    The caller holds the engine's lock, except in `copy_deep`.

    Args:
        ready: the engine's queue.
        dead: ids of nodes that are known to be gone; shared by the runs of an engine.
    """

    def __init__(self, ready: ReadyQueue, dead: set[str]) -> None:
        self._ready, self.dead = ready, dead
        self.repeated: set[WorkItem] = set()  # items that run again; they are not reported twice

    def update_dead(self) -> None:
        self.dead |= {node["NodeID"] for node in import_ray().nodes() if not node["Alive"]}

    def any_dead(self, nodes: Collection[str]) -> bool:
        """Return whether any of these nodes is gone. Waits, because Ray may notice it only after some time."""
        end = time.monotonic() + NOTICE
        while True:
            self.update_dead()
            if not self.dead.isdisjoint(nodes) or time.monotonic() > end:
                return not self.dead.isdisjoint(nodes)
            time.sleep(0.2)

    def is_lost(self, slot: ValueSlot) -> bool:
        """Return whether an available value was lost with its node, or deleted before it was needed again."""
        if not slot.available or slot.info is None:
            return False
        return not isinstance(slot.stored, RayValue) or slot.stored.node in self.dead

    def recompute(self, slot: ValueSlot) -> None:
        """Run the producer of a value again, and before it the producers of inputs that are lost too.

        Raises:
            TaskError: there is no producer, since the value comes from a checkpoint.
        """
        item = slot.producer
        if item is None:
            raise TaskError("a value that cannot be recomputed was lost with its node; continue with headwater resume")
        if item in self.repeated:
            return
        self.repeated.add(item)
        item.slots = tuple(each() or ValueSlot(0) for each in item.produced)
        for each in item.slots:
            if self.is_lost(each):
                each.available = False
        for view in item.inputs.values():
            view.slot.references += 1
            view.slot.stored = view.slot.stored or view.slot.backup
        if self.inputs_available(item):
            self._ready.push(item)

    def inputs_available(self, item: WorkItem) -> bool:
        """Return whether an item can run now. Otherwise it is pushed once its lost inputs were computed again."""
        slots = {view.resolved.slot for view in item.inputs.values()}
        for slot in slots:
            if self.is_lost(slot):
                self.recompute(slot)
        missing = [ValueView(slot) for slot in slots if not slot.available]
        if missing:
            self._ready.push_when_available(item, missing)
        return not missing

    def remember(self, item: WorkItem) -> None:
        """Keep what is needed to run an item again, as long as something refers to its values."""
        item.inputs = {key: view.resolved for key, view in item.inputs.items()}
        item.produced = tuple(weakref.ref(slot) for slot in item.slots)
        item.depth = 1
        for slot, _ in item.inputs.values():
            if slot.producer is not None:
                item.depth = max(item.depth, 1 + slot.producer.depth)
            else:
                slot.backup = slot.stored

    def copy_deep(self, slots: Iterable[ValueSlot], here: str, lock: AbstractContextManager[Any]) -> None:
        """Copy values to this node if recomputing them after the loss of their node would repeat many work items.

        Args:
            slots: values that are still needed.
            here: id of this node.
            lock: the engine's lock, which the caller does not hold, since copying takes time.
        """
        ray = import_ray()
        for slot in slots:
            producer, stored = slot.producer, slot.stored
            if producer is None or producer.depth < MAX_DEPTH or not isinstance(stored, RayValue):
                continue
            try:
                copy = ray.put([ray.get(stored.batch)[stored.index]])
            except ray.exceptions.ObjectLostError:
                continue  # it is computed again when it is needed
            with lock:
                if slot.stored is stored:
                    slot.stored = slot.backup = RayValue(copy, 0, here, stored.outline)
                    slot.producer = None
