"""Runs to one row a method: accuracy with its interval, and what it cost.

* The accuracy is the mean over finished seeds. Two seeds or more give a 95 % t-interval of that mean; a single seed has
  none, so the run's own interval over its test set stands there and is called so. The two say different things: the
  first how much training varies, the second how much the size of the test set leaves open.
* The target, unless one is given, is the highest accuracy that every method reaches at least once in all its finished
  seeds, rounded down to a tenth of a per cent: the strictest goal at which all of them can be compared.
* Bytes are those between server and sectors, both ways, without what is given out before round 1.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from headwater.core.statistics import mean_interval
from headwater.report.groups import Group, group
from headwater.report.numbers import NBSP, NONE, count, duration, number, percent, size
from headwater.report.runs import DIRECTIONS, RunRecord

OVER_SEEDS = "95 % t-interval over seeds"
ONE_RUN = "95 % interval of one run over its test set"


@dataclass(frozen=True)
class Row:
    """One method. None: not known, or (to the target) not reached in every seed."""

    method: str
    seeds: int
    finished: int
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    interval: str  # OVER_SEEDS, ONE_RUN or empty
    best_accuracy: float | None
    local_accuracy: float | None
    ensemble_accuracy: float | None
    reached_target: int  # in how many of the counted seeds
    rounds_to_target: float | None
    bytes_to_target: float | None
    bytes: float | None
    round_trips: float | None
    seconds: float | None
    best: bool = False  # highest accuracy of all


@dataclass(frozen=True)
class Summary:
    rows: tuple[Row, ...]
    target: float | None
    chosen: bool  # the target was found here, not given


@dataclass(frozen=True)
class Column:
    """A column for people: heading, text of a cell, and which end is good (+1 high, -1 low, 0 neither)."""

    heading: str
    key: str
    text: Callable[[Row], str]
    good: int = 0


def summary(runs: Sequence[RunRecord] | Sequence[Group], target: float | None = None) -> Summary:
    """A row for every method among the runs."""
    groups = _groups(runs)
    goal = target if target is not None else common_target(groups)
    rows = [_row(each, goal) for each in groups]
    ranked = [row for row in rows if row.finished] or rows
    top = max((row.accuracy for row in ranked if row.accuracy is not None), default=None)
    if len(rows) > 1 and top is not None:
        rows = [Row(**{**asdict(row), "best": row in ranked and row.accuracy == top}) for row in rows]
    return Summary(tuple(rows), goal, target is None)


def common_target(groups: Sequence[Group]) -> float | None:
    """The highest accuracy that every method reaches in all seeds, down to a tenth of a per cent."""
    finished = [run for each in groups for run in each.finished] or [run for each in groups for run in each.runs]
    peaks = [max((value for _, value in run.curve()), default=None) for run in finished]
    reached = [peak for peak in peaks if peak is not None]
    return math.floor(min(reached) * 1000 + 1e-9) / 1000 if reached else None


def columns(found: Summary) -> list[Column]:
    """What a table for people shows of this summary; the columns nobody has anything in are left out."""
    goal = percent(found.target)
    shown = [
        Column("Method", "method", lambda row: row.method),
        Column("Seeds", "seeds", lambda row: _seeds(row)),
        Column("Accuracy", "accuracy", accuracy_text, +1),
        Column("Best accuracy", "best_accuracy", lambda row: percent(row.best_accuracy), +1),
        Column("Local", "local_accuracy", lambda row: percent(row.local_accuracy), +1),
        Column("Ensemble", "ensemble_accuracy", lambda row: percent(row.ensemble_accuracy), +1),
        Column(f"Rounds to {goal}", "rounds_to_target", lambda row: _to_target(row, count(row.rounds_to_target)), -1),
        Column(f"Bytes to {goal}", "bytes_to_target", lambda row: _to_target(row, size(row.bytes_to_target)), -1),
        Column("Bytes in all", "bytes", lambda row: size(row.bytes), -1),
        Column("Round trips", "round_trips", lambda row: count(row.round_trips), -1),
        Column("Time", "seconds", lambda row: duration(row.seconds), -1),
    ]
    optional = ("local_accuracy", "ensemble_accuracy")
    kept = [
        each
        for each in shown
        if each.key not in optional or any(getattr(row, each.key) is not None for row in found.rows)
    ]
    return kept if found.target is not None else [each for each in kept if not each.key.endswith("_to_target")]


def winners(found: Summary, column: Column) -> set[int]:
    """Which rows are best in a column; nobody is when there is nothing to compare."""
    values = {
        at: value
        for at, row in enumerate(found.rows)
        if (row.finished or not any(other.finished for other in found.rows))
        and (value := number(getattr(row, column.key))) is not None
    }
    if not column.good or len(values) < 2 or len(set(values.values())) < 2:
        return set()
    top = max(values.values(), key=lambda value: column.good * value)
    return {at for at, value in values.items() if value == top}


def dicts(found: Summary) -> list[dict[str, Any]]:
    """The rows as plain numbers, with the target each was held against."""
    return [asdict(row) | {"target": found.target} for row in found.rows]


def csv_text(found: Summary) -> str:
    """The rows as CSV: plain numbers, empty where a value is not known."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*Row.__dataclass_fields__, "target"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dicts(found))
    return out.getvalue()


def markdown(found: Summary) -> str:
    """The rows as a Markdown table, the best of each column in bold, and what the columns mean below it."""
    shown = columns(found)
    best = [winners(found, column) for column in shown]
    lines = [
        "| " + " | ".join(column.heading for column in shown) + " |",
        "|" + "|".join(" :-- " if column.key == "method" else " --: " for column in shown) + "|",
    ]
    for at, row in enumerate(found.rows):
        cells = [_markdown_cell(column.text(row), at in wins) for column, wins in zip(shown, best, strict=True)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"{note}  " for note in notes(found))]) + "\n"


def notes(found: Summary) -> list[str]:
    """What a reader must know to read the table."""
    kinds = {row.interval for row in found.rows}
    told = []
    if OVER_SEEDS in kinds:
        told.append(f"± is the 95{NBSP}% t-interval of the mean over seeds.")
    if ONE_RUN in kinds:
        told.append(
            f"A range in brackets is the 95{NBSP}% interval of a single run over its test set; "
            "it says nothing of other seeds."
        )
    if found.target is not None and found.chosen:
        who = "every method reaches in all finished seeds" if len(found.rows) > 1 else "every finished seed reaches"
        told.append(f"The target of {percent(found.target)} is the highest accuracy that {who}.")
    told.append("Bytes are those between server and sectors, up and down, without the setup.")
    if any(row.finished < row.seeds for row in found.rows):
        told.append("Means are over finished seeds; a method without any shows its values so far.")
    return told


def accuracy_text(row: Row) -> str:
    """Mean ± half width, or value [low, high] for a single run."""
    if row.accuracy is None or row.accuracy_low is None or row.accuracy_high is None:
        return percent(row.accuracy) if row.finished or row.accuracy is None else f"{percent(row.accuracy)} so far"
    if row.interval == OVER_SEEDS:
        half = (row.accuracy_high - row.accuracy_low) / 2
        return f"{100 * row.accuracy:.1f}{NBSP}±{NBSP}{percent(half)}"
    return f"{percent(row.accuracy)} [{100 * row.accuracy_low:.1f}, {100 * row.accuracy_high:.1f}]"


def _groups(runs: Sequence[RunRecord] | Sequence[Group]) -> list[Group]:
    ready = [each for each in runs if isinstance(each, Group)]
    return ready or list(group([each for each in runs if isinstance(each, RunRecord)]).groups)


def _row(each: Group, goal: float | None) -> Row:
    runs = each.counted
    finals = [run.accuracy for run in runs if run.accuracy is not None]
    ends, kind = _interval(runs, finals)
    reached = [hit for run in runs if goal is not None and (hit := _hit(run, goal)) is not None]
    everybody = len(reached) == len(runs)
    return Row(
        method=each.label,
        seeds=len(each.runs),
        finished=len(each.finished),
        accuracy=fmean(finals) if finals else None,
        accuracy_low=ends[0] if ends else None,
        accuracy_high=ends[1] if ends else None,
        interval=kind,
        best_accuracy=_mean([run.best for run in runs]),
        local_accuracy=_mean([number(run.last("local_accuracy")) for run in runs]),
        ensemble_accuracy=_mean([number(run.last("ensemble_accuracy")) for run in runs]),
        reached_target=len(reached),
        rounds_to_target=fmean(at for at, _ in reached) if reached and everybody else None,
        bytes_to_target=fmean(sent for _, sent in reached) if reached and everybody else None,
        bytes=_mean([_both_ways(run) for run in runs]),
        round_trips=_mean([number(run.ledger("server_sector").get("round_trips")) for run in runs]),
        seconds=_mean([run.seconds for run in runs]),
    )


def _interval(runs: Sequence[RunRecord], finals: Sequence[float]) -> tuple[tuple[float, float] | None, str]:
    mean, half = mean_interval(finals) if finals else (0.0, None)
    if half is not None:
        return (mean - half, mean + half), OVER_SEEDS
    own = runs[0].interval if len(runs) == 1 else None
    return own, ONE_RUN if own else ""


def _hit(run: RunRecord, goal: float) -> tuple[int, float] | None:
    """Round and bytes at which a run first reached the goal."""
    at = next((at for at, value in run.curve() if value >= goal), None)
    return None if at is None else (at, run.traffic()[at])


def _both_ways(run: RunRecord) -> float | None:
    parts = [run.sent("server_sector", direction) for direction in DIRECTIONS]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _seeds(row: Row) -> str:
    return str(row.seeds) if row.finished == row.seeds else f"{row.finished} of {row.seeds} finished"


def _to_target(row: Row, text: str) -> str:
    total = row.finished or row.seeds
    return text if row.reached_target in (0, total) else f"{NONE} ({row.reached_target} of {total} seeds)"


def _markdown_cell(text: str, strong: bool) -> str:
    safe = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return f"**{safe}**" if strong else safe
