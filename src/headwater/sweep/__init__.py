"""Many runs at once, each a cell of a table or of a grid, in a directory of its own.

A cell that is finished is left alone, one that was interrupted is carried on to the bit, and one that fails is told and
does not end the others. Cells are trained in worker processes that stay: torch is imported and data read once in each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.config.fields import plain
from headwater.config.write import differences
from headwater.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from headwater.config import Config

ASKED = "cell.json"  # beside config.toml: what was asked for, before the data filled in the rest


@dataclass(frozen=True)
class Cell:
    """A configuration, where its run goes, and what it is called."""

    name: str
    path: Path
    config: Config
    weight: float = 1.0  # about how long it takes, compared with others


@dataclass(frozen=True)
class Ended:
    """How a cell ended: finished unless `failed` is a sentence, which is the user's business unless it is `ours`."""

    failed: str = ""
    ours: bool = False


@dataclass(frozen=True)
class Size:
    """What there is to know of a data set before it is used; `absent` is the sentence of why it cannot be,
    `wrong` the one where it is there and damaged, so that nothing may stand in for it."""

    train: int = 0
    test: int = 0
    shape: tuple[int, ...] = ()
    classes: int = 0
    tokens: bool = False
    absent: str = ""
    wrong: str = ""


@dataclass(frozen=True)
class Asked:
    """The file that tells which cell a directory holds."""

    version: str
    tree: dict[str, Any]
    facts: dict[str, Any]

    @staticmethod
    def read(path: Path) -> Asked | None:
        try:
            found = json.loads((path / ASKED).read_text(encoding="utf-8"))
            return Asked(str(found["headwater"]), dict(found["asked"]), dict(found["facts"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or cut short: the run's own configuration decides

    def difference(self, now: Config) -> str:
        """What makes this another run, in words; keys that have come since count as their defaults."""
        from headwater.config import Config

        try:
            found = Config(**self.tree).difference(now)
        except ConfigError as error:
            return f"of another version: {error}"
        return "" if found is None else f"{found[0]} is {found[1]!r} there and {found[2]!r} now"

    def text(self) -> str:
        return json.dumps({"headwater": self.version, "facts": self.facts, "asked": self.tree}, indent=1)


def identity(config: Config) -> str:
    """Equal for configurations that give the same result, wherever they are computed."""
    found = list(differences(plain(config.tree()), {}))
    return json.dumps(sorted((key, value) for key, value, _ in found), default=str)


def finished(cell: Cell) -> bool:
    """Whether the cell's directory holds its finished run, as far as can be told without reading data.

    Another run there is refused. What was left by another version is for a worker to judge, which compares what the
    data filled in as well.
    """
    from headwater import __version__

    asked = Asked.read(cell.path)
    if asked is None:
        return False
    found = asked.difference(cell.config)
    if found:
        raise OutputError(
            f"{cell.path} holds another run ({found}); choose another --out, or replace what is there with --force"
        )
    return asked.version == __version__ and (cell.path / "result.json").is_file()


def left_to_do(cells: Iterable[Cell]) -> list[Cell]:
    """The cells without a finished run; refuses before anything is trained what could not be kept."""
    return [cell for cell in cells if not finished(cell)]
