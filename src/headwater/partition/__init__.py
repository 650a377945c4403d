"""Partition schemes: the ways to distribute a data set over clients. Listing them imports no torch.

One file per scheme; a class with `INFO = Info(...)` is listed. The package can be called: `hw.partition(...)` is
`headwater.api.partition`, which shows a split.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from headwater.registry import Info, Registry


class PartitionRegistry(Registry[Info]):
    """The registry of partition schemes."""

    def load(self, name: str) -> Any:
        """The class of this name, or the user's own at "package.module:Name", with a default for every hook."""
        from headwater.partition.base import as_partitioner

        return as_partitioner(super().load(name), name)


PARTITIONS = PartitionRegistry("partition", "headwater.partition")


class _CallableModule(ModuleType):
    """Importing this package sets the name `headwater.partition`, which users call like `hw.run`."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return importlib.import_module("headwater.api").partition(*args, **keywords)


sys.modules[__name__].__class__ = _CallableModule
