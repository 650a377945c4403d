"""Presets: ready configurations as TOML files in this folder. Each holds its differences from the one it extends.

The first line of a file is a comment with the summary that `headwater list presets` shows.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable


@lru_cache(maxsize=1)
def names() -> dict[str, str]:
    """Summary by name, in alphabetical order."""
    return {name: _summary(file) for name, file in sorted(_files().items())}


def text(name: str) -> str:
    """The TOML text of a preset.

    Args:
        name: a key of `names()`.
    """
    return _files()[name].read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _files() -> dict[str, Traversable]:
    return dict(_walk(files(__name__), ""))


def _walk(folder: Traversable, before: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _walk(item, f"{before}{item.name}/")
        elif item.name.endswith(".toml"):
            found.append((before + item.name.removesuffix(".toml"), item))
    return found


def _summary(file: Traversable) -> str:
    return file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()
