"""The numbers of a table: read from run directories, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.algorithms import SameAs
from headwater.core.statistics import mean_interval
from headwater.errors import ConfigError, nearest
from headwater.papers.measures import COUNTS, Measure
from headwater.report.differences import FEWEST, Difference, paired
from headwater.report.runs import RunRecord, read
from headwater.sweep import CellFile, CellOutcome

if TYPE_CHECKING:
    from headwater.papers.table import PaperTable
    from headwater.papers.table_plan import TablePlan


@dataclass(frozen=True)
class TableEntry:
    """One cell of a table.

    Args:
        row: name of its row.
        column: name of its column.
        unit: unit of all numbers.
        printed: the paper's value.
        spread: the paper's standard deviation.
        values: our value by seed; None for a run without this value.
        failed: message by seed, for runs that failed.
        runs: run directory by seed.
        range: the smallest and the largest value that there can be.
        alike: by seed, the other method that gives the same result as the row's on this split, where there is one.
    """

    row: str
    column: str
    unit: str
    printed: float | None
    spread: float | None
    values: Mapping[int, float | None]
    failed: Mapping[int, str]
    runs: Mapping[int, Path]
    range: tuple[float, float] = (-inf, inf)
    alike: Mapping[int, SameAs] = field(default_factory=dict)

    @property
    def same_as(self) -> SameAs | None:
        """The other method that gives the same result as the row's with every seed; None if there is none."""
        return next(iter(self.alike.values())) if self.alike and len(self.alike) == len(self.values) else None

    @property
    def known(self) -> list[float]:
        return [value for value in self.values.values() if value is not None]

    @property
    def mean(self) -> float | None:
        """Mean over seeds; None if a seed has no value, since a mean over the others would not be comparable."""
        known = self.known
        return mean_interval(known)[0] if known and len(known) == len(self.values) else None

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % t-interval over seeds; None with a single seed."""
        known = self.known
        return mean_interval(known)[1] if len(known) > 1 and len(known) == len(self.values) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % t-interval over seeds; a share stays between 0 and 100 %."""
        mean, half, (least, most) = self.mean, self.half, self.range
        return None if mean is None or half is None else (max(least, mean - half), min(most, mean + half))

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's value."""
        return None if self.mean is None or self.printed is None else self.mean - self.printed

    def to_dict(self) -> dict[str, Any]:
        ends = self.interval
        return {
            "row": self.row,
            "column": self.column,
            "unit": self.unit,
            "paper": self.printed,
            "paper_spread": self.spread,
            "ours": self.mean,
            "low": None if ends is None else ends[0],
            "high": None if ends is None else ends[1],
            "difference": self.difference,
            "values": {str(seed): value for seed, value in self.values.items()},
            "failed": {str(seed): sentence for seed, sentence in self.failed.items()},
            "runs": {str(seed): str(path) for seed, path in self.runs.items()},
            "same_as": {str(seed): other.method for seed, other in self.alike.items()},
        }


@dataclass(frozen=True)
class Results:
    """A planned table with its entries by row and column.

    Args:
        plan: the table.
        entries: its cells.
        baseline: the row that the others are compared with; empty for the first one.
    """

    plan: TablePlan
    entries: Mapping[tuple[str, str], TableEntry]
    baseline: str = ""

    @property
    def base(self) -> str:
        """The row that the others are compared with."""
        return self.baseline or self.rows[0]

    def gap(self, row: str, column: str) -> Difference | None:
        """The difference of a cell to the baseline's; None for that itself and with fewer than two pairs of seeds."""
        one, other = self.entries.get((row, column)), self.entries.get((self.base, column))
        gap = None if row == self.base or one is None or other is None else entry_gap(one, other)
        return gap if gap is not None and gap.seeds >= FEWEST else None

    @property
    def rows(self) -> list[str]:
        return [row.name for row in self.plan.table.rows]

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.plan.table.columns]

    def measure(self, column: str) -> Measure:
        return self.plan.measures[column]

    @property
    def failures(self) -> dict[str, str]:
        """Message by the name of each failed run."""
        found: dict[str, str] = {}
        for entry in self.entries.values():
            for seed, sentence in entry.failed.items():
                cell = self.plan.cells[self.plan.at[entry.row, entry.column, seed]]
                found[cell.name] = sentence
        return found


def entry_gap(one: TableEntry, other: TableEntry) -> Difference | None:
    """The difference of two cells, paired by seed; None unless both have a value for every seed."""
    if one.mean is None or other.mean is None:
        return None
    mine, base = ({seed: v for seed, v in each.values.items() if v is not None} for each in (one, other))
    least, most = one.range
    return paired(mine, base, most - least)


def check_baseline(table: PaperTable, baseline: str | None) -> str:
    """The name of the row that others are compared with; empty for the first one.

    Raises:
        ConfigError: the table has no such row.
    """
    names = [row.name for row in table.rows]
    if baseline is not None and baseline not in names:
        raise ConfigError(
            f"--baseline {baseline!r} is no row of {table.name}{nearest(baseline, names)} (rows: {', '.join(names)})"
        )
    return baseline or ""


def collect(plan: TablePlan, outcomes: Mapping[Path, CellOutcome], out: Path, baseline: str = "") -> Results:
    """Read all runs of a table.

    Args:
        plan: the table.
        outcomes: how runs ended, by directory; those that failed are not read.
        out: the directory of the table.
        baseline: the row that the others are compared with; empty for the first one.
    """
    records: dict[Path, RunRecord] = {}
    table = plan.table
    entries: dict[tuple[str, str], TableEntry] = {}
    for row, column in places(plan):
        measure, unit = plan.measures[column], table.unit_of(table.column(column))
        values: dict[int, float | None] = {}
        failed: dict[int, str] = {}
        runs: dict[int, Path] = {}
        alike: dict[int, SameAs] = {}
        for seed in plan.seeds:
            path = plan.cells[plan.at[row, column, seed]].path
            runs[seed] = path.relative_to(out)
            if path in outcomes and outcomes[path].failed:
                values[seed], failed[seed] = None, outcomes[path].failed
                continue
            if path not in records:
                records[path] = read(path)
            if measure.name not in COUNTS and (other := _same_as(path)):
                alike[seed] = other
            value = measure.value(records[path])
            values[seed] = None if value is None else value * measure.factor(unit)
        # If the scale replaced the printed measure by another, there is nothing to compare with.
        known = (table.printed, table.spread) if plan.shows_printed(column) else ({}, {})
        printed, spread = (numbers.get((row, column)) for numbers in known)
        more = (failed, runs, measure.range(unit), alike)
        entries[row, column] = TableEntry(row, column, unit, printed, spread, values, *more)
    return Results(plan, entries, baseline)


def _same_as(run: Path) -> SameAs | None:
    file = CellFile.read(run)
    return SameAs(*file.facts["same_as"]) if file is not None and "same_as" in file.facts else None


def places(plan: TablePlan) -> Iterator[tuple[str, str]]:
    """Rows and columns of all cells of the table, row by row."""
    yield from dict.fromkeys((row, column) for row, column, _ in plan.at)
