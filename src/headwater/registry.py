"""Tables of names: each kind of part (method, data set, model, …) is one table of name → where it is.

The tables hold import paths rather than objects, so that listing what exists never imports torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.errors import ConfigError, nearest


@dataclass(frozen=True)
class Entry:
    """One row of a table."""

    target: str  # "package.module:attribute"
    summary: str  # one line for `headwater list`
    extra: tuple[tuple[str, str], ...] = ()  # further columns, such as a method's three stages

    def load(self) -> Any:
        return load(self.target)


class Registry(Mapping[str, Entry]):
    """The names of one kind. `extendable` kinds also take "package.module:attribute"."""

    def __init__(self, kind: str, entries: Mapping[str, Entry], *, extendable: bool = False) -> None:
        self.kind, self._entries, self.extendable = kind, dict(entries), extendable

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: str) -> str:
        """The name itself if it is known, else an error with the nearest match."""
        if name in self._entries or (self.extendable and ":" in name):
            return name
        raise ConfigError(
            f"there is no {self.kind} called {name!r}{nearest(name, self._entries)} (known: {', '.join(self._entries)})"
        )

    def load(self, name: str) -> Any:
        self.check(name)
        return self._entries[name].load() if name in self._entries else load(name)


def load(target: str) -> Any:
    """The object that "package.module:attribute" names."""
    module, _, attribute = target.partition(":")
    _look_here(module.partition(".")[0])
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{target!r} could not be imported ({error}); write it as 'package.module:name', of a package that is "
            "installed or a file in the directory where the command is given"
        ) from error
    return found


def _look_here(name: str) -> None:
    """A user's module may lie in the directory one is in, where an installed command does not look. That directory
    comes last, and only if there is such a file, so that nothing else in it is taken for a package."""
    if "" not in sys.path and (Path(f"{name}.py").is_file() or Path(name, "__init__.py").is_file()):
        sys.path.append("")
