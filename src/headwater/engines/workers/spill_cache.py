"""Values that wait, within a budget of memory: what exceeds it is on disk, and is mapped when somebody needs it.

What a task works with does not wait, and is not counted.
"""

from __future__ import annotations

import atexit
import os
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core import serialization

if TYPE_CHECKING:
    from headwater.engines.workers.shared_memory import Space

MEGABYTE = 1 << 20
SMALL = 4096  # bytes below which a value is neither counted nor put on disk: a file takes no less


def budget_of(megabytes: float) -> int:
    """The budget in bytes; without one, a quarter of the memory that there is for this process."""
    if megabytes > 0:
        return int(megabytes * MEGABYTE)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # a container may have less than its machine; "max" says that it has not
        there = min(there, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return there // 4


class SpillCache(Mapping[str, Any]):
    """A dict whose least recently used values are files once the others take up the budget."""

    def __init__(self, budget: int) -> None:
        self.budget, self.held = budget, 0  # `held`: bytes in memory
        self._small: dict[str, Any] = {}
        self._large: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # with its size, the least recently used first
        self._away: dict[str, Path] = {}
        self._space: Space | None = None
        self._count = 0

    def __setitem__(self, name: str, value: Any) -> None:
        self.put(name, value, serialization.info(value).bytes)

    def put(self, name: str, value: Any, size: int) -> None:
        """A value of so many bytes."""
        if name in self:
            self.discard(name)
        if size < SMALL:
            self._small[name] = value
            return
        self._large[name] = (value, size)
        self.held += size
        while self.held > self.budget and self._large:
            self._put_away(next(iter(self._large)))

    def __getitem__(self, name: str) -> Any:
        if name in self._small:
            return self._small[name]
        if name in self._large:
            self._large.move_to_end(name)
            return self._large[name][0]
        return serialization.read(self._away[name])

    def __contains__(self, name: object) -> bool:
        return name in self._large or name in self._small or name in self._away

    def __iter__(self) -> Iterator[str]:
        yield from (*self._small, *self._large, *self._away)

    def __len__(self) -> int:
        return len(self._small) + len(self._large) + len(self._away)

    def discard(self, name: str) -> None:
        """Let go of a value, if it is there."""
        self._small.pop(name, None)
        if name in self._large:
            self.held -= self._large.pop(name)[1]
        if name in self._away:
            self._away.pop(name).unlink(missing_ok=True)

    def take_up(self, values: Mapping[str, Any]) -> None:
        """Values that are mapped from files already, and so take no memory."""
        for name, value in values.items():
            self.discard(name)
            self._small[name] = value

    def settle(self, name: str) -> None:
        """See that a value which goes on waiting does not keep in memory what it is only a part of."""
        if name in self._large:
            value, _ = self._large[name]
            own = serialization.on_its_own(value)
            if own is not value:
                self[name] = own

    @property
    def files(self) -> list[Path]:
        return list(self._away.values())

    def close(self) -> None:
        """Let go of everything, on disk too; safe to call twice."""
        for part in (self._small, self._large, self._away):
            part.clear()
        self.held = 0
        if self._space is not None and os.getpid() == self._owner:  # a process forked off this one has no say
            self._space.remove()
            atexit.unregister(self.close)
        self._space = None

    def _put_away(self, name: str) -> None:
        if self._space is None:
            from headwater.engines.workers.shared_memory import Space

            self._space, self._owner = Space.create(memory=False), os.getpid()
            atexit.register(self.close)
        value, _ = self._large[name]
        self._count += 1
        path = self._space.write(f"value-{self._count}", value)
        self.discard(name)
        self._away[name] = path


@dataclass
class Budget:
    """What shared memory may hold: how much it does hold, and what was promised to workers that are busy."""

    bytes: int
    used: int = 0
    _promised: dict[Hashable, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return max(0, self.bytes - self.used - sum(self._promised.values()))

    def promise(self, who: Hashable, askers: int) -> int:
        """An equal part of what is left, where so many may ask."""
        self._promised[who] = room = self.left // max(1, askers)
        return room

    def redeem(self, who: Hashable) -> None:
        self._promised.pop(who, None)
