"""Memory budgets for values that wait to be used: an in-memory cache that spills to disk, and a budget for files.

Values that a task is using are not counted.
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
    from headwater.engines.workers.shared_memory import SharedFiles

MEGABYTE = 1 << 20
SMALL = 4096  # bytes; smaller values are neither counted nor spilled, since a file takes no less


def budget_of(megabytes: float) -> int:
    """Convert `engine.memory` to bytes; 0 stands for a quarter of the memory that this process may use."""
    if megabytes > 0:
        return int(megabytes * MEGABYTE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # the limit of a container; ValueError for "max", which is no limit
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return memory // 4


class SpillCache(Mapping[str, Any]):
    """A dict that moves its least recently used values to disk when the others exceed a budget.

    Values on disk are memory-mapped when they are read.

    Args:
        budget: bytes of values in memory.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.bytes_in_memory = budget, 0
        self._small: dict[str, Any] = {}  # not counted
        self._large: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # with its size, least recently used first
        self._on_disk: dict[str, Path] = {}
        self._directory: SharedFiles | None = None
        self._count = 0

    def __setitem__(self, name: str, value: Any) -> None:
        self.put(name, value, serialization.info(value).bytes)

    def put(self, name: str, value: Any, size: int) -> None:
        """Set a value whose size in bytes is known."""
        if name in self:
            self.discard(name)
        if size < SMALL:
            self._small[name] = value
            return
        self._large[name] = (value, size)
        self.bytes_in_memory += size
        while self.bytes_in_memory > self.budget and self._large:
            self._spill(next(iter(self._large)))

    def __getitem__(self, name: str) -> Any:
        if name in self._small:
            return self._small[name]
        if name in self._large:
            self._large.move_to_end(name)
            return self._large[name][0]
        return serialization.read(self._on_disk[name])

    def __contains__(self, name: object) -> bool:
        return name in self._large or name in self._small or name in self._on_disk

    def __iter__(self) -> Iterator[str]:
        yield from (*self._small, *self._large, *self._on_disk)

    def __len__(self) -> int:
        return len(self._small) + len(self._large) + len(self._on_disk)

    def discard(self, name: str) -> None:
        """Remove a value, if it is there."""
        self._small.pop(name, None)
        if name in self._large:
            self.bytes_in_memory -= self._large.pop(name)[1]
        if name in self._on_disk:
            self._on_disk.pop(name).unlink(missing_ok=True)

    def put_mapped(self, name: str, value: Any) -> None:
        """Set a value that is memory-mapped from a file already, and so is not counted."""
        self.discard(name)
        self._small[name] = value

    def detach(self, name: str) -> None:
        """Copy a value that is a view of a larger tensor, so that it does not keep that in memory."""
        if name in self._large:
            value, _ = self._large[name]
            own = serialization.on_its_own(value)
            if own is not value:
                self[name] = own

    @property
    def files(self) -> list[Path]:
        """Files of the values on disk."""
        return list(self._on_disk.values())

    def close(self) -> None:
        """Remove all values, on disk too. Safe to call twice."""
        for part in (self._small, self._large, self._on_disk):
            part.clear()
        self.bytes_in_memory = 0
        if self._directory is not None and os.getpid() == self._owner:  # not in a process that was forked off
            self._directory.remove()
            atexit.unregister(self.close)
        self._directory = None

    def _spill(self, name: str) -> None:
        if self._directory is None:
            from headwater.engines.workers.shared_memory import SharedFiles

            self._directory, self._owner = SharedFiles.create(memory=False), os.getpid()
            atexit.register(self.close)
        value, _ = self._large[name]
        self._count += 1
        path = self._directory.write(f"value-{self._count}", value)
        self.discard(name)
        self._on_disk[name] = path


@dataclass
class Budget:
    """Budget of shared memory: what files use, and what is reserved for workers that may write some.

    Args:
        bytes: the budget.
        used: bytes of existing files.
    """

    bytes: int
    used: int = 0
    _reserved: dict[Hashable, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return max(0, self.bytes - self.used - sum(self._reserved.values()))

    def reserve(self, worker: Hashable, idle: int) -> int:
        """Reserve an equal share of what is free, and return its bytes.

        Args:
            worker: key of the reservation.
            idle: workers among which the free memory is shared, this one included.
        """
        self._reserved[worker] = room = self.free // max(1, idle)
        return room

    def release(self, worker: Hashable) -> None:
        """End a reservation."""
        self._reserved.pop(worker, None)
