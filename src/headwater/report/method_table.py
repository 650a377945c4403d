"""One row per method: accuracy with its interval, and cost.

* Accuracy is the mean over finished seeds. Two or more seeds give a 95 % t-interval of that mean, which shows how much
  training varies. A single seed has none; its row has the run's own interval over its test set, marked as such, which
  shows the uncertainty due to the size of the test set.
* The target, unless one is given, is the highest accuracy that every method reaches in all its finished seeds, rounded
  down to a tenth of a per cent: the strictest target at which all of them can be compared.
* Bytes are counted between server and sectors, in both directions, without the setup before round 1.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from headwater.core.statistics import mean_interval
from headwater.errors import ConfigError
from headwater.report.grouping import MethodRuns, as_groups, problem
from headwater.report.numbers import NBSP, NONE, count, duration, mean, number, percent, size
from headwater.report.runs import DIRECTIONS, RunRecord

OVER_SEEDS = "95 % t-interval over seeds"
ONE_RUN = "95 % interval of one run over its test set"


@dataclass(frozen=True)
class MethodRow:
    """One method. None means unknown or, for the target, not reached in every seed."""

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
    reached_target: int  # number of counted seeds that reached the target
    rounds_to_target: float | None
    bytes_to_target: float | None
    bytes: float | None
    round_trips: float | None
    seconds: float | None
    best: bool = False  # highest accuracy of all on the same data and split
    problem: str = ""  # the settings of data and split, if methods differ in them


@dataclass(frozen=True)
class MethodTable:
    """The rows and the target that rounds and bytes are counted to."""

    rows: tuple[MethodRow, ...]
    target: float | None
    chosen: bool  # the target was derived from the runs, not given


@dataclass(frozen=True)
class MethodColumn:
    """A column to show: heading, field of `MethodRow`, text of a cell, what is better (+1 high, -1 low, 0 neither)."""

    heading: str
    key: str
    text: Callable[[MethodRow], str]
    good: int = 0


def check_target(target: float | None, name: str = "target") -> None:
    """Refuse a target accuracy that is not between 0 and 1."""
    if target is not None and (not isinstance(target, int | float) or not 0 < target < 1):
        raise ConfigError(f"{name} is an accuracy between 0 and 1, got {target}; 0.8 stands for 80 %")


def tabulate(runs: Sequence[RunRecord] | Sequence[MethodRuns], target: float | None = None) -> MethodTable:
    """One row per method.

    Args:
        runs: runs, which are grouped by method, or groups.
        target: accuracy to count rounds and bytes to; None for the highest that all methods reach.
    """
    check_target(target)
    groups = as_groups(runs)
    goal = target if target is not None else common_target(groups)
    rows = [_row(each, goal) for each in groups]
    problems = _problems(groups)
    rows = [replace(row, problem=words) for row, words in zip(rows, problems, strict=True)]
    found = MethodTable(tuple(rows), goal, target is None)
    leaders = winners(found, MethodColumn("", "accuracy", accuracy_text, +1), ties=True)
    return replace(found, rows=tuple(replace(row, best=at in leaders) for at, row in enumerate(rows)))


def _problems(groups: Sequence[MethodRuns]) -> list[str]:
    """The settings of data and split by group, as words; empty if all groups have the same."""
    configs = [json.loads(problem(each.runs[0])) for each in groups]
    keys = dict.fromkeys(key for config in configs for key in config)
    varied = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    return [", ".join(f"{key} {config.get(key, 'unset')}" for key in varied) for config in configs]


def common_target(groups: Sequence[MethodRuns]) -> float | None:
    """The highest accuracy that every method reaches in all seeds, rounded down to a tenth of a per cent."""
    finished = [run for each in groups for run in each.finished] or [run for each in groups for run in each.runs]
    peaks = [max((value for _, value in run.curve()), default=None) for run in finished]
    reached = [peak for peak in peaks if peak is not None]
    return math.floor(min(reached) * 1000 + 1e-9) / 1000 if reached else None


def columns(found: MethodTable) -> list[MethodColumn]:
    """The columns to show; optional columns without any value are left out."""
    goal = percent(found.target)
    shown = [
        MethodColumn("Method", "method", lambda row: row.method),
        MethodColumn("Seeds", "seeds", lambda row: _seeds(row)),
        MethodColumn("Accuracy", "accuracy", accuracy_text, +1),
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
    ]
    optional = ("local_accuracy", "ensemble_accuracy")
    kept = [
        each
        for each in shown
        if each.key not in optional or any(getattr(row, each.key) is not None for row in found.rows)
    ]
    return kept if found.target is not None else [each for each in kept if not each.key.endswith("_to_target")]


def winners(found: MethodTable, column: MethodColumn, *, ties: bool = False) -> set[int]:
    """Indices of the best rows of a column on each problem (data and split); none where there is nothing to compare.

    Args:
        found: the table.
        column: the column.
        ties: whether all rows win if all have the same value.
    """
    best: set[int] = set()
    for words in dict.fromkeys(row.problem for row in found.rows):
        rows = [(at, row) for at, row in enumerate(found.rows) if row.problem == words]
        values = {
            at: value
            for at, row in rows
            if (row.finished or not any(other.finished for _, other in rows))
            and (value := number(getattr(row, column.key))) is not None
        }
        if column.good and len(rows) > 1 and (ties or len(set(values.values())) > 1):
            top = max(values.values(), key=lambda value: column.good * value, default=None)
            best |= {at for at, value in values.items() if value == top}
    return best


def dicts(found: MethodTable) -> list[dict[str, Any]]:
    """The rows as dicts of plain numbers, each with the target."""
    return [asdict(row) | {"target": found.target} for row in found.rows]


def csv_text(found: MethodTable) -> str:
    """The rows as CSV: plain numbers, empty where a value is unknown."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*MethodRow.__dataclass_fields__, "target"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dicts(found))
    return out.getvalue()


def markdown(found: MethodTable) -> str:
    """The rows as a Markdown table with the best of each column in bold, and the notes below it."""
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


def notes(found: MethodTable) -> list[str]:
    """Sentences that explain the columns of this table."""
    kinds = {row.interval for row in found.rows}
    lines = []
    if OVER_SEEDS in kinds:
        clipped = any(row.interval == OVER_SEEDS and "[" in accuracy_text(row) for row in found.rows)
        sign = "A range in brackets after several seeds" if clipped else "±"
        both = " (± where it does not reach beyond 0 or 100 %)" if clipped else ""
        lines.append(f"{sign} is the 95{NBSP}% t-interval of the mean over seeds{both}.")
    if ONE_RUN in kinds:
        lines.append(
            f"A range in brackets is the 95{NBSP}% interval of a single run over its test set; "
            "it does not cover the variation between seeds."
        )
    if len({row.problem for row in found.rows}) > 1:
        lines.append("The best is marked among methods with the same data and split.")
    if found.target is not None and found.chosen:
        reach = "every method reaches in all finished seeds" if len(found.rows) > 1 else "every finished seed reaches"
        lines.append(f"The target of {percent(found.target)} is the highest accuracy that {reach}.")
    lines.append("Bytes are counted between server and sectors, up and down, without the setup.")
    if any(row.finished < row.seeds for row in found.rows):
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


def _row(each: MethodRuns, goal: float | None) -> MethodRow:
    runs = each.counted
    finals = [run.accuracy for run in runs if run.accuracy is not None]
    ends, kind = _interval(runs, finals)
    reached = [hit for run in runs if goal is not None and (hit := _hit(run, goal)) is not None]
    all_reached = bool(reached) and len(reached) == len(runs)
    return MethodRow(
        method=each.label,
        seeds=len(each.runs),
        finished=len(each.finished),
        accuracy=fmean(finals) if finals else None,
        accuracy_low=ends[0] if ends else None,
        accuracy_high=ends[1] if ends else None,
        interval=kind,
        best_accuracy=mean([run.best for run in runs]),
        local_accuracy=mean([number(run.last("local_accuracy")) for run in runs]),
        ensemble_accuracy=mean([number(run.last("ensemble_accuracy")) for run in runs]),
        reached_target=len(reached),
        rounds_to_target=fmean(at for at, _ in reached) if all_reached else None,
        bytes_to_target=fmean(sent for _, sent in reached) if all_reached else None,
        bytes=mean([_bytes(run) for run in runs]),
        round_trips=mean([number(run.ledger("server_sector").get("round_trips")) for run in runs]),
        seconds=mean([run.seconds for run in runs]),
    )


def _interval(runs: Sequence[RunRecord], finals: Sequence[float]) -> tuple[tuple[float, float] | None, str]:
    middle, half = mean_interval(finals) if finals else (0.0, None)
    if half is not None:
        return (max(0.0, middle - half), min(1.0, middle + half)), OVER_SEEDS
    own = runs[0].interval if len(runs) == 1 else None
    return own, ONE_RUN if own else ""


def _hit(run: RunRecord, goal: float) -> tuple[int, float] | None:
    """Round and bytes at which a run first reached the target."""
    at = next((at for at, value in run.curve() if value >= goal), None)
    return None if at is None else (at, run.traffic()[at])


def _bytes(run: RunRecord) -> float | None:
    parts = [run.sent("server_sector", direction) for direction in DIRECTIONS]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _seeds(row: MethodRow) -> str:
    return str(row.seeds) if row.finished == row.seeds else f"{row.finished} of {row.seeds} finished"


def _to_target(row: MethodRow, text: str) -> str:
    total = row.finished or row.seeds
    return text if row.reached_target in (0, total) else f"{NONE} ({row.reached_target} of {total} seeds)"


def _markdown_cell(text: str, strong: bool) -> str:
    safe = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return f"**{safe}**" if strong else safe
