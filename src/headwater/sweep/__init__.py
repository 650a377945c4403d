"""Many runs at once: the cells of a table or of a grid, each with a directory of its own.

A finished cell is skipped. An interrupted cell is continued with the same bits. A cell that fails is reported, and the
others continue. Worker processes train several cells each, so that they import torch and read data once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.config.fields import plain
from headwater.config.plain_tables import differences
from headwater.core.records import parse_json
from headwater.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from headwater.config import Config

CELL_FILE = "cell.json"  # beside config.toml: the configuration as requested, before the data's defaults


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Args:
        name: for messages.
        path: directory of the run.
        config: its configuration.
        weight: estimated duration relative to other cells.
    """

    name: str
    path: Path
    config: Config
    weight: float = 1.0


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended.

    Args:
        failed: why it failed, as a sentence; empty if it finished.
        ours: whether the failure is a defect of Headwater rather than of the configuration.
    """

    failed: str = ""
    ours: bool = False


@dataclass(frozen=True)
class DataSummary:
    """Size and shape of a data set, or why it cannot be used.

    Args:
        train: number of training samples.
        test: number of test samples.
        shape: shape of one input.
        classes: number of classes.
        tokens: whether inputs are token numbers.
        absent: error message if the data is not there; another data set may then replace it. Else empty.
        wrong: error message if the data is damaged; no other data set may then replace it. Else empty.
    """

    train: int = 0
    test: int = 0
    shape: tuple[int, ...] = ()
    classes: int = 0
    tokens: bool = False
    absent: str = ""
    wrong: str = ""


@dataclass(frozen=True)
class CellFile:
    """Contents of cell.json, which says which cell a directory holds.

    Args:
        version: of Headwater.
        tree: the configuration as requested, as nested dicts.
        facts: facts about the cell that tables may show; see `facts_of` in `headwater.sweep.cell_worker`.
    """

    version: str
    tree: dict[str, Any]
    facts: dict[str, Any]

    @staticmethod
    def read(path: Path) -> CellFile | None:
        """Read the file of a run's directory; None if it is absent or damaged."""
        try:
            found = parse_json((path / CELL_FILE).read_text(encoding="utf-8"))
            return CellFile(str(found["headwater"]), dict(found["asked"]), dict(found["facts"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # the run's own configuration decides

    def difference(self, now: Config) -> str:
        """Describe the first difference to a configuration, or return "". Keys added since count as their defaults."""
        from headwater.config import Config

        try:
            found = Config(**self.tree).difference(now)
        except ConfigError as error:
            return f"of another version: {error}"
        return "" if found is None else f"{found[0]} is {found[1]!r} there and {found[2]!r} now"

    def text(self) -> str:
        return json.dumps({"headwater": self.version, "facts": self.facts, "asked": self.tree}, indent=1)


def identity(config: Config) -> str:
    """Return a text that is equal for configurations with the same result, wherever they are computed."""
    found = list(differences(plain(config.tree()), {}))
    return json.dumps(sorted((key, value) for key, value, _ in found), default=str)


def finished(cell: Cell) -> bool:
    """Return whether the cell's directory holds its finished run, as far as that is known without reading data.

    A run of another version counts as unfinished: a worker then also compares the keys filled in from the data.

    Raises:
        OutputError: the directory holds another run.
    """
    from headwater import __version__

    file = CellFile.read(cell.path)
    if file is None:
        return False
    difference = file.difference(cell.config)
    if difference:
        raise OutputError(
            f"{cell.path} holds another run ({difference}); choose another --out, or replace what is there with --force"
        )
    return file.version == __version__ and (cell.path / "result.json").is_file()


def unfinished(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells without a finished run.

    Raises:
        OutputError: a directory holds another run, before anything is trained.
    """
    return [cell for cell in cells if not finished(cell)]
