"""The table of methods as text: columns with headings, Markdown, CSV, and the notes below it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

from headwater.report.differences import LEGEND, RANKS_LEGEND
from headwater.report.method_table import ONE_RUN, OVER_SEEDS, MethodRow, MethodTable, dicts, winners
from headwater.report.numbers import NBSP, NONE, count, duration, percent, size


@dataclass(frozen=True)
class MethodColumn:
    """A column to show: heading, field of `MethodRow`, text of a cell, what is better (+1 high, -1 low, 0 neither)."""

    heading: str
    key: str
    text: Callable[[MethodRow], str]
    good: int = 0


def columns(table: MethodTable) -> list[MethodColumn]:
    """The columns to show; optional columns without any value are left out."""
    goal = percent(table.target)
    shown = [
        MethodColumn("Method", "method", lambda row: row.method),
        MethodColumn("Seeds", "seeds", lambda row: _seeds(row)),
        MethodColumn("Accuracy", "accuracy", accuracy_text, +1),
        MethodColumn(f"Difference to {_baseline(table)}", "gap", lambda row: row.gap.text if row.gap else NONE),
        MethodColumn("Best accuracy", "best_accuracy", lambda row: percent(row.best_accuracy), +1),
        MethodColumn("Local", "local_accuracy", lambda row: percent(row.local_accuracy), +1),
        MethodColumn("Ensemble", "ensemble_accuracy", lambda row: percent(row.ensemble_accuracy), +1),
        MethodColumn(
            f"Rounds to {goal}", "rounds_to_target", lambda row: _to_target(row, count(row.rounds_to_target)), -1
        ),
        MethodColumn(f"Bytes to {goal}", "bytes_to_target", lambda row: _to_target(row, size(row.bytes_to_target)), -1),
        MethodColumn("Bytes in all", "bytes", lambda row: size(row.bytes), -1),
        MethodColumn("Round trips", "round_trips", lambda row: count(row.round_trips), -1),
        MethodColumn("Time", "seconds", lambda row: duration(row.seconds), -1),
        MethodColumn("Tuned", "tuned_runs", _tuned),
    ]
    optional = ("gap", "local_accuracy", "ensemble_accuracy", "tuned_runs")
    kept = [
        each
        for each in shown
        if each.key not in optional or any(getattr(row, each.key) is not None for row in table.rows)
    ]
    return kept if table.target is not None else [each for each in kept if not each.key.endswith("_to_target")]


def best_rows(table: MethodTable, column: MethodColumn) -> set[int]:
    """Indices of the best rows of a column."""
    return winners(table, column.key, column.good)


def csv_text(table: MethodTable) -> str:
    """The rows as CSV: plain numbers, empty where a value is unknown."""
    out = io.StringIO()
    rows = dicts(table)
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def markdown(table: MethodTable) -> str:
    """The rows as a Markdown table with the best of each column in bold, and the notes below it."""
    shown = columns(table)
    best = [best_rows(table, column) for column in shown]
    lines = [
        "| " + " | ".join(column.heading for column in shown) + " |",
        "|" + "|".join(" :-- " if column.key == "method" else " --: " for column in shown) + "|",
    ]
    for at, row in enumerate(table.rows):
        cells = [_markdown_cell(column.text(row), at in wins) for column, wins in zip(shown, best, strict=True)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"{note}  " for note in notes(table))]) + "\n"


def notes(table: MethodTable) -> list[str]:
    """Sentences that explain the columns of this table."""
    kinds = {row.interval for row in table.rows}
    lines = []
    if OVER_SEEDS in kinds:
        clipped = any(row.interval == OVER_SEEDS and "[" in accuracy_text(row) for row in table.rows)
        sign = "A range in brackets after several seeds" if clipped else "±"
        both = " (± where it does not reach beyond 0 or 100 %)" if clipped else ""
        lines.append(f"{sign} is the 95{NBSP}% t-interval of the mean over seeds{both}.")
    if ONE_RUN in kinds:
        lines.append(
            f"A range in brackets is the 95{NBSP}% interval of a single run over its test set; "
            "it does not cover the variation between seeds."
        )
    gaps = [row.gap for row in table.rows if row.gap]
    lines += [LEGEND] if gaps else []
    lines += [RANKS_LEGEND] if any(gap.wins is not None for gap in gaps) else []
    if gaps and len({row.baseline for row in table.rows}) > 1:
        lines.append("The baseline is the first method with the same data and split, or the one that was named.")
    if len({row.problem for row in table.rows}) > 1:
        lines.append("The best is marked among methods with the same data and split.")
    if table.target is not None and table.chosen:
        reach = "every method reaches in all finished seeds" if len(table.rows) > 1 else "every finished seed reaches"
        lines.append(f"The target of {percent(table.target)} is the highest accuracy that {reach}.")
    if any(row.tuned_runs is not None for row in table.rows):
        lines.append("Tuned: settings that were chosen on the validation set alone before the runs, and what it took.")
    lines.append(
        "Best accuracy is the test accuracy of the round that was best on the validation set, or of the last round "
        "without one."
    )
    lines.append("Bytes are counted between server and sectors, up and down, without the setup.")
    if any(row.finished < row.seeds for row in table.rows):
        lines.append("Means are over finished seeds; a method without any shows its values so far.")
    return lines


def accuracy_text(row: MethodRow) -> str:
    """Mean ± half the interval, or value [low, high] for a single run."""
    if row.accuracy is None or row.accuracy_low is None or row.accuracy_high is None:
        return percent(row.accuracy) if row.finished or row.accuracy is None else f"{percent(row.accuracy)} so far"
    if row.interval == OVER_SEEDS:
        half = max(row.accuracy_high - row.accuracy, row.accuracy - row.accuracy_low)
        if row.accuracy - half >= 0 and row.accuracy + half <= 1:
            return f"{100 * row.accuracy:.1f}{NBSP}±{NBSP}{percent(half)}"
    return f"{percent(row.accuracy)} [{100 * row.accuracy_low:.1f}, {100 * row.accuracy_high:.1f}]"


def _tuned(row: MethodRow) -> str:
    """What was chosen, and its cost in runs, rounds and time."""
    if row.tuned_runs is None:
        return NONE
    spent = f"{row.tuned_runs} runs, {count(row.tuned_rounds)} rounds, {duration(row.tuned_seconds)}"
    return f"{row.tuned or 'nothing'} ({spent})"


def _baseline(table: MethodTable) -> str:
    names = {row.baseline for row in table.rows}
    return names.pop() if len(names) == 1 else "the baseline"


def _seeds(row: MethodRow) -> str:
    return str(row.seeds) if row.finished == row.seeds else f"{row.finished} of {row.seeds} finished"


def _to_target(row: MethodRow, text: str) -> str:
    total = row.finished or row.seeds
    return text if row.reached_target in (0, total) else f"{NONE} ({row.reached_target} of {total} seeds)"


def _markdown_cell(text: str, strong: bool) -> str:
    safe = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return f"**{safe}**" if strong else safe
