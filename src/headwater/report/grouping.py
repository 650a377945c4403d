"""Runs grouped by method, and their curves over seeds.

Runs that differ only in their seed form one group; any other difference of configuration makes another group, so that
the runs of a sweep over one method are never averaged as if they were seeds. Where several groups have the same name,
the keys in which they differ are added to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from headwater.report.numbers import number
from headwater.report.runs import DIRECTIONS, RowValue, RunRecord, moved

# Keys that change how a run is executed or observed, but not what it computes.
IGNORED = ("seed", "extends", "eval_every", "engine", "links", "out")


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method in one setting, by seed."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        return tuple(run for run in self.runs if run.finished)

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs that a mean is taken over: the finished ones, or all while none is finished."""
        return self.finished or self.runs


@dataclass(frozen=True)
class Grouping:
    """The groups in the order of the runs, and the runs that repeat a seed and were left out.

    A repeated seed would make an interval over seeds narrower than it is.
    """

    groups: tuple[MethodRuns, ...]
    dropped: tuple[Path, ...]


@dataclass(frozen=True)
class Point:
    """The mean over the seeds that reached this round."""

    round: int
    bytes: float  # between server and sectors up to this round, mean over the same seeds
    value: float
    low: float  # lowest and highest seed; with few seeds, an interval per round would claim more than is known
    high: float
    seeds: int
    near: float = 0.0  # bytes between one sector and its clients up to this round, on average over sectors
    seconds: float = 0.0  # of training and distillation up to this round
    far_trips: float = 0.0  # round trips between server and sectors up to this round that all waited for
    near_trips: float = 0.0  # the same between sectors and clients


@dataclass(frozen=True)
class Series:
    """One curve. After the shortest run has ended, its points are means over fewer seeds."""

    label: str
    slot: int  # number of its colour and dash, the same in every chart of a report
    points: tuple[Point, ...]

    @property
    def full(self) -> tuple[Point, ...]:
        """The points with all seeds."""
        return tuple(point for point in self.points if point.seeds == self.points[0].seeds)

    @property
    def tail(self) -> tuple[Point, ...]:
        """The other points, joined to the last full one."""
        rest = self.points[len(self.full) :]
        return (self.full[-1], *rest) if rest else ()


def group(runs: Sequence[RunRecord]) -> Grouping:
    """Group runs by method and setting. Of two runs with the same seed, the one that got further is kept."""
    by_key: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_key.setdefault(_key(run), []).append(run)
    dropped: list[Path] = []
    chosen: list[list[RunRecord]] = []
    for members in by_key.values():
        by_seed: dict[int, RunRecord] = {}
        for run in members:
            kept = by_seed.setdefault(run.seed, run)
            if kept is not run:
                better, worse = (run, kept) if (run.finished, run.done) > (kept.finished, kept.done) else (kept, run)
                by_seed[run.seed] = better
                dropped.append(worse.path)
        chosen.append([by_seed[seed] for seed in sorted(by_seed)])
    names = _names(chosen)
    groups = tuple(MethodRuns(name, tuple(seeds)) for name, seeds in zip(names, chosen, strict=True))
    return Grouping(groups, tuple(dropped))


def as_groups(runs: Sequence[RunRecord] | Sequence[MethodRuns]) -> list[MethodRuns]:
    """Groups as they are, or runs grouped by method."""
    groups = [each for each in runs if isinstance(each, MethodRuns)]
    return groups or list(group([each for each in runs if isinstance(each, RunRecord)]).groups)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def differing(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """Dotted keys whose value is not the same in every group."""
    configs = [_settings(runs[0]) for runs in groups]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({_json(config.get(key)) for config in configs}) > 1]


def over_seeds(runs: Sequence[RunRecord], key: RowValue = "accuracy", *, costs: bool = True) -> tuple[Point, ...]:
    """One point per round that was measured in every run that had not ended by then.

    Args:
        runs: the seeds.
        key: of the value, or a function of a row.
        costs: whether points have bytes and seconds; to sum them up takes longer than the rest.
    """
    curves = [(dict(run.curve(key)), _costs(run) if costs else ()) for run in runs]
    ends = [(max(curve), curve, sums) for curve, sums in curves if curve]
    points: list[Point] = []
    spent = [0.0] * 5
    for at in sorted({at for _, curve, _ in ends for at in curve}):
        going = [(curve, sums) for end, curve, sums in ends if end >= at]
        # Without a value of every seed, the mean would jump only because other seeds are in it.
        if any(at not in curve for curve, _ in going):
            continue
        values = [curve[at] for curve, _ in going]
        # When a seed ends, the mean over the others may be smaller; a curve must not go back.
        if costs:
            spent = [max(spent[kind], fmean(sums[kind][at] for _, sums in going)) for kind in range(5)]
        sent, *others = spent
        points.append(Point(at, sent, fmean(values), min(values), max(values), len(values), *others))
    return tuple(points)


def accuracy(groups: Sequence[MethodRuns]) -> list[Series]:
    """The accuracy curve of every group that has one."""
    found = [Series(each.label, slot, over_seeds(each.runs)) for slot, each in enumerate(groups)]
    return [series for series in found if series.points]


def problem(run: RunRecord) -> str:
    """What must be equal for two runs to be compared: the settings of data and split."""
    parts = {part: run.config.get(part) for part in ("data", "partition")}
    return _json({key: value for key, value in flat(parts).items() if key != "data.dir"})


def split_of(run: RunRecord) -> str:
    """Hash of a run's split; empty if unknown."""
    return str((run.result or {}).get("partition_sha256") or (run.partition or {}).get("sha256") or "")


def _costs(run: RunRecord) -> tuple[dict[int, float], ...]:
    """Up to each round: bytes on the long link, bytes of one sector, seconds of work, and round trips on both links."""
    return run.traffic(), _near(run), _work(run), _trips(run, "server_sector"), _trips(run, "sector_client")


def _trips(run: RunRecord, tier: str) -> dict[int, float]:
    """Round trips on a tier that all waited for, up to each round. Rows without them count one where bytes moved."""
    total, sums = 0.0, {}
    for row in run.rows:
        waits = row.get("waits")
        known = number(waits.get(tier)) if isinstance(waits, dict) else None
        total += float(any(moved(row, tier, way) for way in DIRECTIONS)) if known is None else known
        sums[int(row["round"])] = total
    return sums


def _near(run: RunRecord) -> dict[int, float]:
    """Bytes between one sector and its clients up to each round, on average over sectors."""
    settings = run.config.get("partition")
    sectors = number(settings.get("sectors")) if isinstance(settings, dict) else None
    return {at: sent / max(sectors or 1.0, 1.0) for at, sent in run.traffic("sector_client").items()}


def _work(run: RunRecord) -> dict[int, float]:
    """Seconds of training and distillation up to each round."""
    total, sums = 0.0, {}
    for row in run.rows:
        parts = row.get("seconds")
        known = [number(parts.get(key)) for key in ("train", "distill")] if isinstance(parts, dict) else []
        total += sum(part for part in known if part is not None)
        sums[int(row["round"])] = total
    return sums


def _settings(run: RunRecord) -> dict[str, Any]:
    settings = flat({key: value for key, value in run.config.items() if key not in IGNORED})
    settings.pop("model.start_sha256", None)  # `model.start` says the same in fewer letters
    return settings


def _key(run: RunRecord) -> str:
    return _json([run.algorithm, _settings(run)])


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _names(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    # An unfinished run has no display name and takes that of a finished seed.
    first = [next((run.label for run in runs if run.finished), runs[0].label) for runs in groups]
    names = list(first)
    for name in dict.fromkeys(first):
        alike = [index for index, other in enumerate(first) if other == name]
        if len(alike) < 2:
            continue
        keys = differing([groups[index] for index in alike])
        for index in alike:
            settings = _settings(groups[index][0])
            parts = [f"{_short(key, keys)} {_shown(settings.get(key))}" for key in keys]
            names[index] = f"{name} ({', '.join(parts)})" if parts else name
    return [
        name if names.index(name) == at else f"{name} #{names[:at].count(name) + 1}" for at, name in enumerate(names)
    ]


def _short(key: str, keys: Sequence[str]) -> str:
    """The key without its section where that is unambiguous."""
    tail = key.rpartition(".")[2]
    return tail if sum(other.rpartition(".")[2] == tail for other in keys) == 1 else key


def _shown(value: Any) -> str:
    return "unset" if value in (None, "") else Path(value).name if isinstance(value, str) else str(value)
