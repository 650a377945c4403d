"""Values and work items of engines with workers: which value is where, which job waits for which input.

A `ValueSlot` is a reference-counted future. A `ValueView` is a slot, or a part of its value, under some name. A
`WorkItem` is a job that waits for its inputs, waits in the `ReadyQueue` or is at a worker.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import ref

from headwater.core import serialization
from headwater.core.serialization import ValueInfo
from headwater.engines.availability import Availability
from headwater.engines.jobs import LOST, Job, Ref, pick


class StoredValue(Protocol):
    """Where a value is stored: in a file, or in an object store."""

    def value(self) -> Any:
        """Read it."""

    def info(self, part: tuple[Any, ...]) -> ValueInfo:
        """Return size and kind of a part of it."""

    def remove(self) -> None:
        """Delete it."""


@dataclass(eq=False)
class ValueSlot:
    """One value, computed or still being computed. It is deleted when nothing refers to it any more.

    Args:
        references: names and work items that need it.
        available: whether it was computed; a lost value is available too.
        stored: where it is; None for a lost value.
        info: size and kind; None for a lost value.
        saved_as: (directory, part) → file name of a checkpoint.
        callbacks: called once it is available.
        choice: whether this is the result of `either`; `target` is then what was chosen.
        producer: the work item that can compute it again, on engines that can lose an available value.
        backup: keeps the stored value for producers that may have to run again, even if nothing else needs it.
    """

    references: int = 1
    available: bool = False
    stored: StoredValue | None = None
    info: ValueInfo | None = None
    saved_as: dict[tuple[Path, tuple[Any, ...]], str] = field(default_factory=dict)
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    choice: bool = False
    target: ValueView | None = None
    producer: WorkItem | None = None
    backup: StoredValue | None = None

    def remove(self) -> None:
        if self.stored is not None:
            self.stored.remove()
            self.stored = None

    def fill(self, stored: StoredValue | None, info: ValueInfo | None) -> None:
        """Note that the value was computed."""
        self.stored, self.info = stored, info
        if not self.references:  # its name was dropped before it was computed
            self.remove()
        self.set_available()

    def set_available(self) -> None:
        self.available = True
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def release(self) -> None:
        """Remove one reference."""
        self.references -= 1
        if not self.references:
            self.remove()
        if not self.references and self.target is not None:
            self.target.slot.release()


class ValueView(NamedTuple):
    """What a name stands for: the value of a slot or, after a move, perhaps a part of it."""

    slot: ValueSlot
    part: tuple[Any, ...] = ()

    @property
    def resolved(self) -> ValueView:
        """Where the value is stored, once it is available: a choice is replaced by what was chosen."""
        target = self.slot.target
        return self if target is None else ValueView(target.slot, target.part + self.part)

    def when_available(self, callback: Callable[[], None]) -> None:
        if self.slot.available:
            callback()
        else:
            self.slot.callbacks.append(callback)

    def value(self, part: tuple[Any, ...] = ()) -> Any:
        """Read an available value, or a part of it."""
        value = LOST if self.slot.stored is None else self.slot.stored.value()
        return pick(value, Ref("", "", self.part + part))

    def save(self, directory: Path) -> str:
        """Write it to a file named by its content, unless that was done before; "" for a lost value."""
        if self.slot.stored is None:
            return ""
        known = self.slot.saved_as.get((directory, self.part))
        if known is None or not (directory / known).exists():
            known = self.slot.saved_as[directory, self.part] = serialization.store(self.value(), directory)
        return known

    def info(self) -> ValueInfo | None:
        """Return size and kind; None for a lost value."""
        return self.slot.stored.info(self.part) if self.part and self.slot.stored is not None else self.slot.info


@dataclass(frozen=True)
class GroupView:
    """What the name of a group stands for: node → value."""

    members: dict[str, ValueView]


def views_of(view: ValueView | GroupView) -> Collection[ValueView]:
    """Return the values behind a name: one, or those of all members."""
    return view.members.values() if isinstance(view, GroupView) else (view,)


def choose(new: ValueView, old: ValueView) -> ValueSlot:
    """Return a slot for the new value or, if that is lost, the old one. It refers to both until it is known which."""
    slot = ValueSlot(choice=True)
    for each in (new, old):
        each.slot.references += 1

    def settle(chosen: ValueView, other: ValueView) -> None:
        target = chosen.resolved
        target.slot.references += 1
        slot.target = target
        if not slot.references:  # the choice itself was dropped meanwhile
            target.slot.release()
        for each in (chosen, other):
            each.slot.release()
        slot.set_available()

    def decide() -> None:
        if new.resolved.slot.info is not None:
            settle(new, old)
        else:
            old.when_available(lambda: settle(old, new))

    new.when_available(decide)
    return slot


@dataclass(eq=False)
class WorkItem:
    """A job, or a group that is executed as one. It can go to a worker when no input is missing.

    Args:
        number: in the order of submission.
        call: number of the first item of the same call of a task, such as one training step of all clients.
        run: number of the run it belongs to.
        jobs: the job, or the jobs of the group.
        pickled: `jobs`, pickled.
        inputs: key of a ref → the value.
        slots: where the results go, in the order of `jobs`.
        missing: inputs that are not available yet.
        deaths: workers that died while they executed it.
        depth: length of the chain of items that would have to run again if all their values were lost.
        produced: weak references to `slots`, where slots refer to their producer, so that there is no cycle.
        due: when the clients of a group have all been available once.
    """

    number: int
    call: int
    run: int
    jobs: tuple[Job, ...]
    pickled: bytes
    inputs: Mapping[str, ValueView]
    slots: tuple[ValueSlot, ...]
    missing: int = 0
    deaths: int = 0
    depth: int = 0
    produced: tuple[ref[ValueSlot], ...] = ()
    due: float | None = None

    @property
    def title(self) -> str:
        """Task, node and home, for messages."""
        first, more = self.jobs[0], len(self.jobs) - 1
        return f"{first.title} at {first.node} (home {first.home})" + (f" and {more} more" if more else "")

    @property
    def file_names(self) -> list[str]:
        """Names of the files for its values."""
        return [f"value-{self.number}-{at}" for at in range(len(self.jobs))]

    @cached_property
    def _rank(self) -> tuple[int, int, int]:
        return self.call, -sum(job.size for job in self.jobs), self.number

    def __lt__(self, other: WorkItem) -> bool:
        """In program order; within one call the longest first, so that the last to end is a short one."""
        return self._rank < other._rank


class ReadyQueue:
    """Priority queue of work items whose inputs are available. Not thread-safe: the caller holds the engine's lock.

    Args:
        availability: of the simulated clients; None before the first run.
        wake: called by a timer thread when a client has become available.
    """

    def __init__(self, availability: Availability | None, wake: Callable[[], None]) -> None:
        self._availability, self._wake = availability, wake
        self._items: list[WorkItem] = []  # a heap
        self._timer: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: WorkItem) -> None:
        heapq.heappush(self._items, item)

    def push_when_available(self, item: WorkItem, inputs: Collection[ValueView]) -> None:
        """Push an item as soon as these inputs are available."""
        item.missing = len(inputs)

        def input_available() -> None:
            item.missing -= 1
            if not item.missing:
                self.push(item)

        for view in inputs:
            view.when_available(input_available)
        if not inputs:
            self.push(item)

    def pop(self, fits: Callable[[WorkItem], bool] | None = None) -> WorkItem | None:
        """Return the first item that fits and may begin now.

        If items fit but their clients are not available yet, a timer is set for the first of them. Items that do not
        fit stay in the queue without a timer.
        """
        delayed: list[tuple[float, WorkItem]] = []
        unfit: list[WorkItem] = []
        found = None
        while self._items and found is None:
            item = heapq.heappop(self._items)
            if fits is not None and not fits(item):
                unfit.append(item)
            elif seconds := self._delay(item):
                delayed.append((seconds, item))
            else:
                found = item
        for item in (*unfit, *(item for _, item in delayed)):
            heapq.heappush(self._items, item)
        if found is None and delayed:
            self._stop_timer()
            self._timer = threading.Timer(min(seconds for seconds, _ in delayed), self._wake)
            self._timer.daemon = True
            self._timer.start()
        return found

    def clear(self) -> None:
        self._items.clear()
        self._stop_timer()

    def _delay(self, item: WorkItem) -> float:
        """Seconds until it may begin. The clients of a group need not be available at once: each has to be once."""
        if self._availability is None:
            return 0.0
        delays = [self._availability.delay(job) for job in item.jobs if not job.lost]
        if len(item.jobs) == 1 or not delays:
            return max(delays, default=0.0)
        if item.due is None:
            item.due = time.monotonic() + max(delays)
        return max(0.0, item.due - time.monotonic())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
