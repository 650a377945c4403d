"""One row per method: accuracy with its interval, and cost.

* Accuracy is the mean over finished seeds. Two or more seeds give a 95 % t-interval of that mean, which shows how much
  training varies. A single seed has none; its row has the run's own interval over its test set, marked as such, which
  shows the uncertainty due to the size of the test set.
* The target, unless one is given, is the highest accuracy that every method reaches in all its finished seeds, rounded
  down to a tenth of a per cent: the strictest target at which all of them can be compared.
* Bytes are counted between server and sectors, in both directions, without the setup before round 1.
* Differences in accuracy are paired by seed and to one baseline; see `headwater.report.differences`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from headwater.core.statistics import mean_interval
from headwater.errors import ConfigError
from headwater.report.differences import Difference, baselines, differences, gap_facts
from headwater.report.grouping import MethodRuns, as_groups, problem
from headwater.report.numbers import mean, number
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
    baseline: str = ""  # the method that this one is compared with
    tuned: str = ""  # the settings that were chosen on the validation set
    tuned_runs: int | None = None  # what that took
    tuned_rounds: int | None = None
    tuned_seconds: float | None = None
    gap: Difference | None = None  # accuracy minus the baseline's; None for that itself and with fewer than two pairs


@dataclass(frozen=True)
class MethodTable:
    """The rows and the target that rounds and bytes are counted to."""

    rows: tuple[MethodRow, ...]
    target: float | None
    chosen: bool  # the target was derived from the runs, not given


def check_target(target: float | None, name: str = "target") -> None:
    """Refuse a target accuracy that is not between 0 and 1."""
    if target is not None and (not isinstance(target, int | float) or not 0 < target < 1):
        raise ConfigError(f"{name} is an accuracy between 0 and 1, got {target}; 0.8 stands for 80 %")


def tabulate(
    runs: Sequence[RunRecord] | Sequence[MethodRuns], target: float | None = None, baseline: str | None = None
) -> MethodTable:
    """One row per method.

    Args:
        runs: runs, which are grouped by method, or groups.
        target: accuracy to count rounds and bytes to; None for the highest that all methods reach.
        baseline: the method that the others are compared with; None for the first one.
    """
    check_target(target)
    groups = as_groups(runs)
    goal = target if target is not None else common_target(groups)
    parts = zip(groups, _problems(groups), baselines(groups, baseline), differences(groups, baseline), strict=True)
    rows = [
        replace(_row(each, goal), problem=words, baseline=groups[base].label, gap=gap)
        for each, words, base, gap in parts
    ]
    found = MethodTable(tuple(rows), goal, target is None)
    leaders = winners(found, "accuracy", +1, ties=True)
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


def winners(found: MethodTable, key: str, good: int, *, ties: bool = False) -> set[int]:
    """Indices of the best rows of a column on each problem (data and split); none where there is nothing to compare.

    Args:
        found: the table.
        key: field of `MethodRow`.
        good: +1 if the highest is best, -1 if the lowest is, 0 if nothing is.
        ties: whether all rows win if all have the same value.
    """
    best: set[int] = set()
    for words in dict.fromkeys(row.problem for row in found.rows):
        rows = [(at, row) for at, row in enumerate(found.rows) if row.problem == words]
        values = {
            at: value
            for at, row in rows
            if (row.finished or not any(other.finished for _, other in rows))
            and (value := number(getattr(row, key))) is not None
        }
        if good and len(rows) > 1 and (ties or len(set(values.values())) > 1):
            top = max(values.values(), key=lambda value: good * value, default=None)
            best |= {at for at, value in values.items() if value == top}
    return best


def dicts(found: MethodTable) -> list[dict[str, Any]]:
    """The rows as dicts of plain numbers, each with the target and its difference to the baseline."""
    return [
        {key: value for key, value in asdict(row).items() if key != "gap"}
        | {"target": found.target}
        | gap_facts(row.gap)
        for row in found.rows
    ]


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
        **_tuned(runs),
    )


def _tuned(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """How settings were chosen, which is the same for all seeds."""
    found = next((tuned for run in runs if isinstance(tuned := (run.result or {}).get("tuned"), dict)), None)
    if found is None or not isinstance(found.get("settings"), dict):
        return {}
    words = ", ".join(f"{key}={value}" for key, value in found["settings"].items())
    return {"tuned": words} | {f"tuned_{key}": found.get(key) for key in ("runs", "rounds", "seconds")}


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
