"""A table's results from its committed data, so that seeds of several days and machines add up.

NAME_obtained.csv has a line a run and tested round. A run that serves several columns stands under the first of them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.algorithms import SameAs
from headwater.papers import pictures
from headwater.papers.measures import COUNTS, Measure
from headwater.papers.results import Results, TableEntry
from headwater.papers.table import PaperTable
from headwater.papers.table_plan import TablePlan
from headwater.report.runs import RunRecord

Line = dict[str, str]
Place = tuple[str, str]  # row, column
Runs = dict[tuple[str, str, int], list[Line]]  # row, first column of the run, seed → its lines
NAMES = ("row", "column", "same_as")  # what is no number in a line; the last one only where some run has it


def read(path: Path) -> list[Line]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def home(table: PaperTable, row: str, column: str) -> str:
    """The first column whose runs are those of a column, for one row."""
    wanted = table.column(column).set
    alike = (each for each in table.columns if each.set == wanted and (not each.rows or row in each.rows))
    return next(alike).name


def places(table: PaperTable) -> list[Place]:
    return [(row.name, column.name) for row in table.rows for column in table.columns if table.has(row, column)]


def by_run(lines: Iterable[Line]) -> Runs:
    found: Runs = {}
    for line in lines:
        found.setdefault((line["row"], line["column"], int(line["seed"])), []).append(line)
    return found


def complete(table: PaperTable, lines: Iterable[Line]) -> set[int]:
    """The seeds that every place of a table has."""
    runs = by_run(lines)
    seeds = {seed for _, _, seed in runs}
    return {
        seed for seed in seeds if all((row, home(table, row, column), seed) in runs for row, column in places(table))
    }


def joined(table: PaperTable, old: Iterable[Line], new: Iterable[Line]) -> list[Line]:
    """The lines of both, in the table's order and without what it lacks; of a run that both have, the new ones."""
    runs = by_run(old) | by_run(new)
    order = dict.fromkeys((row, home(table, row, column)) for row, column in places(table))
    seeds = sorted({seed for _, _, seed in runs})
    return [line for place in order for seed in seeds for line in runs.get((*place, seed), ())]


def record(lines: Sequence[Line]) -> RunRecord:
    """A run as far as the data have it."""
    rows: list[dict[str, Any]] = [
        {key: float(value) for key, value in line.items() if value and key not in NAMES} for line in lines
    ]
    one = lines[0]
    return RunRecord(Path(), one["row"], one["row"], int(one["seed"]), {}, rows, None, None)


def results(
    table: PaperTable,
    lines: Iterable[Line],
    *,
    scale: str = "paper",
    remarks: Sequence[str] = (),
    metrics: Mapping[str, str] | None = None,
    baseline: str = "",
) -> Results:
    """The table as `headwater reproduce` has it.

    Args:
        table: the table.
        lines: its data.
        scale: the scale of the runs.
        remarks: sentences on what differs from the printed setting.
        metrics: metric by column, where the scale has others than the table.
        baseline: the row that others are compared with; empty for the first one.
    """
    runs = by_run(lines)
    own = {column.name: table.measure(column) for column in table.columns}
    measures = own | {column: Measure.of(text) for column, text in (metrics or {}).items()}
    plan = TablePlan(table, scale, tuple(sorted({seed for _, _, seed in runs})), (), {}, measures, tuple(remarks))
    entries = {}
    for row, column in places(table):
        first, measure, unit = home(table, row, column), measures[column], table.unit_of(table.column(column))
        found = {seed: each for (r, c, seed), each in runs.items() if (r, c) == (row, first)}
        if not found:
            continue
        measured = {seed: measure.value(record(each)) for seed, each in found.items()}
        values = {seed: None if value is None else value * measure.factor(unit) for seed, value in measured.items()}
        printed, spread = (
            numbers.get((row, column)) if plan.shows_printed(column) else None
            for numbers in (table.printed, table.spread)
        )
        alike = {
            seed: SameAs(*each[0]["same_as"].split(": ", 1))
            for seed, each in found.items()
            if each[0].get("same_as") and measure.name not in COUNTS
        }
        more = ({}, {}, measure.range(unit), alike)
        entries[row, column] = TableEntry(row, column, unit, printed, spread, values, *more)
    return Results(plan, entries, baseline)


def draw(found: Results, lines: Iterable[Line], path: Path) -> None:
    """The table's picture, if it has one: a panel for each setting and what it measures."""
    table, runs = found.plan.table, by_run(lines)
    cells: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    drawn = set()
    for column in found.columns:
        panel: dict[str, list[list[dict[str, Any]]]] = {}
        key = ""  # what the column's measure follows from; the same for all rows
        for row in (row for row in found.rows if (row, column) in found.entries):
            first = home(table, row, column)
            own = [record(each) for (r, c, _), each in runs.items() if (r, c) == (row, first)]
            key = found.measure(column).key(own[0])
            panel[row] = [[{**line, "accuracy": line.get(key)} for line in run.rows] for run in own]
        what = (str(table.column(column).set), key)
        if panel and what not in drawn:
            cells[column] = panel
            drawn.add(what)
    if len(cells) == 1 and len(found.columns) > 1:  # columns that are rounds or measures of the same runs
        cells = {"all rounds": next(iter(cells.values()))}
    if table.picture and cells:
        pictures.PICTURES[table.picture](cells, path)
