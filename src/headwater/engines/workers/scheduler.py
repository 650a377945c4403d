"""Values and jobs as an engine with a crew keeps track of them."""

from __future__ import annotations

import heapq
import pickle
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import ref

from headwater.core import serialization
from headwater.core.serialization import Info
from headwater.engines.availability import Presence
from headwater.engines.base import LOST, Job, Ref, pick
from headwater.engines.workers.shared_memory import Failure
from headwater.errors import TaskError


class Kept(Protocol):
    """Where a value is kept: a file, or an object of a store."""

    def value(self) -> Any: ...

    def info(self, part: tuple[Any, ...]) -> Info:
        """Size and kind of a part of it."""

    def remove(self) -> None: ...


@dataclass(eq=False)
class Cell:
    """One value, under way or there. Names and jobs hold it; it is removed when nobody does any more."""

    holders: int = 1
    there: bool = False
    kept: Kept | None = None
    info: Info | None = None  # a lost value has none
    stored: dict[tuple[Path, tuple[Any, ...]], str] = field(default_factory=dict)  # (directory, part) → saved as
    waiting: list[Callable[[], None]] = field(default_factory=list)  # what to do once it is there
    choice: bool = False  # between two other values; `same` is the one that it turned out to be
    same: Name | None = None
    maker: Order | None = None  # what makes it once more, where it can get lost after it was there
    spare: Kept | None = None  # what others are made from once more: there as long as they can get lost

    def remove(self) -> None:
        if self.kept is not None:
            self.kept.remove()
            self.kept = None

    def fill(self, kept: Kept | None, info: Info | None) -> None:
        self.kept, self.info = kept, info
        if not self.holders:  # its name was dropped before it was there
            self.remove()
        self.arrive()

    def arrive(self) -> None:
        self.there = True
        waiting, self.waiting = self.waiting, []
        for act in waiting:
            act()

    def release(self) -> None:
        self.holders -= 1
        if not self.holders:
            self.remove()
        if not self.holders and self.same is not None:
            self.same.cell.release()


class Name(NamedTuple):
    """What a name stands for: a value or, after a move, perhaps a part of one."""

    cell: Cell
    part: tuple[Any, ...] = ()

    @property
    def real(self) -> Name:
        """Where the value is to be found, once it is there."""
        same = self.cell.same
        return self if same is None else Name(same.cell, same.part + self.part)

    def value(self, part: tuple[Any, ...] = ()) -> Any:
        """The value that is there, or a part of it."""
        value = LOST if self.cell.kept is None else self.cell.kept.value()
        return pick(value, Ref("", "", self.part + part))

    def save(self, directory: Path) -> str:
        """Write it under a name made from its content, unless that was done before; a lost value has no file."""
        if self.cell.kept is None:
            return ""
        known = self.cell.stored.get((directory, self.part))
        if known is None or not (directory / known).exists():
            known = self.cell.stored[directory, self.part] = serialization.store(self.value(), directory)
        return known

    def info(self) -> Info | None:
        """Its size and kind."""
        return self.cell.kept.info(self.part) if self.part and self.cell.kept is not None else self.cell.info


@dataclass(frozen=True)
class Several:
    """What the name of a group stands for: a value for each of its nodes."""

    members: dict[str, Name]


def names_of(held: Name | Several) -> Collection[Name]:
    return held.members.values() if isinstance(held, Several) else (held,)


def choose(new: Name, old: Name) -> Cell:
    """A cell that becomes the new value or, if that was lost, the old one; it holds both until it is known which."""
    cell = Cell(choice=True)
    for each in (new, old):
        each.cell.holders += 1

    def settle(chosen: Name, other: Name) -> None:
        real = chosen.real
        real.cell.holders += 1
        cell.same = real
        if not cell.holders:  # everybody has let go of it meanwhile
            real.cell.release()
        for each in (chosen, other):
            each.cell.release()
        cell.arrive()

    def look() -> None:
        if new.real.cell.info is not None:
            settle(new, old)
        else:
            when_there(old, lambda: settle(old, new))

    when_there(new, look)
    return cell


def when_there(name: Name, act: Callable[[], None]) -> None:
    if name.cell.there:
        act()
    else:
        name.cell.waiting.append(act)


@dataclass(eq=False)
class Order:
    """A job on its way, or several that are carried out as one. It can go to a worker when no input is missing."""

    number: int
    call: int  # the number of the first order of the same run of a task
    run: int
    jobs: tuple[Job, ...]
    pickled: bytes
    inputs: Mapping[str, Name]
    cells: tuple[Cell, ...]
    missing: int = 0
    deaths: int = 0
    depth: int = 0  # orders one upon the other that would have to be repeated, were all their values lost
    made: tuple[ref[Cell], ...] = ()  # the cells, where they know who made them: nothing then holds itself
    due: float | None = None  # when the clients of a group have all come

    @property
    def title(self) -> str:
        first, more = self.jobs[0], len(self.jobs) - 1
        return f"{first.title} at {first.node} (home {first.home})" + (f" and {more} more" if more else "")

    @property
    def files(self) -> list[str]:
        return [f"value-{self.number}-{at}" for at in range(len(self.jobs))]

    @cached_property
    def _rank(self) -> tuple[int, int, int]:
        return self.call, -sum(job.size for job in self.jobs), self.number

    def error(self, failure: Failure) -> Exception:
        """What is raised here for what went wrong in a worker."""
        if failure.error:
            kind, arguments = pickle.loads(failure.error)
            error: Exception = kind.__new__(kind, *arguments)  # without its __init__, which may take others
        else:
            error = TaskError(f"{self.title} failed: {failure.summary}")
        if isinstance(error, TaskError):  # a user's mistake is a sentence and nothing more
            error.add_note(f"In a worker process:\n{failure.trace}")
        return error

    def __lt__(self, other: Order) -> bool:
        """In the order of the program, and of one task the longest first: the last to end is then a short one."""
        return self._rank < other._rank


class Queue:
    """Not safe for threads by itself: whoever uses it holds a lock. `ring` is called when a client has come."""

    def __init__(self, presence: Presence | None, ring: Callable[[], None]) -> None:
        self._presence, self._ring = presence, ring
        self._orders: list[Order] = []  # a heap
        self._alarm: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._orders)

    def push(self, order: Order) -> None:
        heapq.heappush(self._orders, order)

    def pop(self, fits: Callable[[Order], bool] | None = None) -> Order | None:
        """The first that may begin now, of those that fit; where there are only others, an alarm is set for the next.

        One that does not fit waits without an alarm.
        """
        away: list[tuple[float, Order]] = []
        other: list[Order] = []
        found = None
        while self._orders and found is None:
            order = heapq.heappop(self._orders)
            if fits is not None and not fits(order):
                other.append(order)
            elif seconds := self._seconds(order):
                away.append((seconds, order))
            else:
                found = order
        for order in (*other, *(order for _, order in away)):
            heapq.heappush(self._orders, order)
        if found is None and away:
            self.silence()
            self._alarm = threading.Timer(min(seconds for seconds, _ in away), self._ring)
            self._alarm.daemon = True
            self._alarm.start()
        return found

    def _seconds(self, order: Order) -> float:
        """Until it may begin. The clients of a group need not be there at the same time: each has to have come."""
        waits = [self._wait(job) for job in order.jobs if not job.lost]
        if len(order.jobs) == 1 or not waits:
            return max(waits, default=0.0)
        if order.due is None:
            order.due = time.monotonic() + max(waits)
        return max(0.0, order.due - time.monotonic())

    def _wait(self, job: Job) -> float:
        return 0.0 if self._presence is None else self._presence.wait(job)

    def clear(self) -> None:
        self._orders.clear()
        self.silence()

    def silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
