"""The methods by name: one paper, one file. A file that defines a class with `INFO = MethodInfo(...)` is listed."""

from __future__ import annotations

from typing import Any

from headwater.algorithms.info import MethodInfo
from headwater.registry import Registry


class Methods(Registry[MethodInfo]):
    """The registry of methods."""

    def load(self, name: str) -> Any:
        """The class of this name, or the user's own at "package.module:Name", with a default for every hook."""
        from headwater.algorithms.base import as_method  # imports torch

        return as_method(super().load(name))

    def info(self, name: str) -> MethodInfo:
        """What a method says about itself; a listed one is not imported for it."""
        if name in self:
            return self[name].info
        own: MethodInfo = self.load(name).INFO
        return own


ALGORITHMS = Methods("method", "headwater.algorithms", info=MethodInfo, order=lambda info: info.position)
