"""Registry of methods. A file in this folder is listed if it defines a class with `INFO = MethodInfo(...)`."""

from __future__ import annotations

from typing import Any

from headwater.algorithms.info import MethodInfo
from headwater.registry import Registry


class Methods(Registry[MethodInfo]):
    """The registry of methods."""

    def load(self, name: str) -> Any:
        """Return the class of a listed method, or of "package.module:Name". Hooks that it lacks have defaults."""
        from headwater.algorithms.base import as_method  # imports torch

        return as_method(super().load(name))

    def info(self, name: str) -> MethodInfo:
        """Return the description of a method. A listed method is not imported for this."""
        if name in self:
            return self[name].info
        own: MethodInfo = self.load(name).INFO
        return own


ALGORITHMS = Methods("method", "headwater.algorithms", info=MethodInfo, order=lambda info: info.position)
