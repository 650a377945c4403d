"""The numbers of a table: what the paper prints, what came out, and what lies between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.statistics import mean_interval
from headwater.papers.measures import Measure
from headwater.papers.plan import Plan
from headwater.report.runs import RunRecord, read
from headwater.sweep import Ended


@dataclass(frozen=True)
class Entry:
    """One place of the table. `values` by seed; none for a seed whose run has no such number."""

    row: str
    column: str
    unit: str
    printed: float | None
    spread: float | None  # printed standard deviation
    values: Mapping[int, float | None]
    failed: Mapping[int, str]  # seeds whose run failed, and the sentence
    runs: Mapping[int, Path]

    @property
    def known(self) -> list[float]:
        return [value for value in self.values.values() if value is not None]

    @property
    def mean(self) -> float | None:
        """Over seeds; none while one of them lacks the number, since a mean over the others would say another thing."""
        known = self.known
        return mean_interval(known)[0] if known and len(known) == len(self.values) else None

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % t-interval over seeds; none with a single seed."""
        known = self.known
        return mean_interval(known)[1] if len(known) > 1 and len(known) == len(self.values) else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.printed is None else self.mean - self.printed

    def to_dict(self) -> dict[str, Any]:
        mean, half = self.mean, self.half
        return {
            "row": self.row,
            "column": self.column,
            "unit": self.unit,
            "paper": self.printed,
            "paper_spread": self.spread,
            "ours": mean,
            "low": None if mean is None or half is None else mean - half,
            "high": None if mean is None or half is None else mean + half,
            "difference": self.difference,
            "values": {str(seed): value for seed, value in self.values.items()},
            "failed": {str(seed): sentence for seed, sentence in self.failed.items()},
            "runs": {str(seed): str(path) for seed, path in self.runs.items()},
        }


@dataclass(frozen=True)
class Results:
    plan: Plan
    entries: Mapping[tuple[str, str], Entry]  # by row and column

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
        """Sentence by the name of the run that failed, each once."""
        found: dict[str, str] = {}
        for entry in self.entries.values():
            for seed, sentence in entry.failed.items():
                cell = self.plan.cells[self.plan.at[entry.row, entry.column, seed]]
                found[cell.name] = sentence
        return found


def collect(plan: Plan, ended: Mapping[Path, Ended], out: Path) -> Results:
    """Read every run back; `ended` tells of those that failed, by their directory."""
    records: dict[Path, RunRecord] = {}
    table = plan.table
    entries: dict[tuple[str, str], Entry] = {}
    for row, column in places(plan):
        measure, unit = plan.measures[column], table.unit_of(table.column(column))
        values: dict[int, float | None] = {}
        failed: dict[int, str] = {}
        runs: dict[int, Path] = {}
        for seed in plan.seeds:
            path = plan.cells[plan.at[row, column, seed]].path
            runs[seed] = path.relative_to(out)
            if path in ended and ended[path].failed:
                values[seed], failed[seed] = None, ended[path].failed
                continue
            if path not in records:
                records[path] = read(path)
            value = measure.value(records[path])
            values[seed] = None if value is None else value * measure.factor(unit)
        # A scale may have put another measure in place of the printed one: there is nothing to compare ours with then.
        known = (table.printed, table.spread) if plan.shows_printed(column) else ({}, {})
        printed, spread = (numbers.get((row, column)) for numbers in known)
        entries[row, column] = Entry(row, column, unit, printed, spread, values, failed, runs)
    return Results(plan, entries)


def places(plan: Plan) -> Iterator[tuple[str, str]]:
    """Rows and columns that the table has a place for, row by row."""
    yield from dict.fromkeys((row, column) for row, column, _ in plan.at)
