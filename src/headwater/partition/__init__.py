"""Partition schemes: the ways to distribute a data set over clients. Listing them imports no torch.

One file per scheme; a class with `INFO = Info(...)` is listed.
"""

from __future__ import annotations

from typing import Any

from headwater.registry import Info, Registry


class PartitionRegistry(Registry[Info]):
    """The registry of partition schemes."""

    def load(self, name: str) -> Any:
        """The class of this name, or the user's own at "package.module:Name", with a default for every hook."""
        from headwater.partition.base import as_partitioner

        return as_partitioner(super().load(name), name)


PARTITIONS = PartitionRegistry("partition", "headwater.partition")
