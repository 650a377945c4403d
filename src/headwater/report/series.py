"""Curves over seeds: what a chart draws, whether by matplotlib or as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from headwater.report.groups import Group
from headwater.report.runs import Measure, RunRecord


@dataclass(frozen=True)
class Point:
    """The mean over the seeds that got as far as this round."""

    round: int
    bytes: float  # server to sectors and back, up to here, mean over the same seeds
    value: float
    low: float  # lowest and highest seed: with a handful of seeds an interval per round would say more than is known
    high: float
    seeds: int


@dataclass(frozen=True)
class Series:
    """One curve. Points with fewer seeds than the first come last, after the shortest run has ended."""

    label: str
    slot: int  # which colour and dash it has, the same in every chart of a report
    points: tuple[Point, ...]

    @property
    def full(self) -> tuple[Point, ...]:
        """The part in which no seed has dropped out."""
        return tuple(point for point in self.points if point.seeds == self.points[0].seeds)

    @property
    def tail(self) -> tuple[Point, ...]:
        """The rest, joined to the last full point."""
        rest = self.points[len(self.full) :]
        return (self.full[-1], *rest) if rest else ()


def over_seeds(runs: Sequence[RunRecord], key: Measure = "accuracy") -> tuple[Point, ...]:
    """A point for every round at which each run that is not over yet was measured."""
    curves = [(dict(run.curve(key)), run.traffic()) for run in runs]
    ends = [(max(curve), curve, traffic) for curve, traffic in curves if curve]
    points: list[Point] = []
    for at in sorted({at for _, curve, _ in ends for at in curve}):
        going = [(curve, traffic) for end, curve, traffic in ends if end >= at]
        # a round that one of the seeds skipped would make the mean jump for no reason but who was asked
        if any(at not in curve for curve, _ in going):
            continue
        values = [curve[at] for curve, _ in going]
        sent = fmean(traffic[at] for _, traffic in going)
        if points:  # when a seed ends, the mean over the others may lie further left; a curve never goes back
            sent = max(sent, points[-1].bytes)
        points.append(Point(at, sent, fmean(values), min(values), max(values), len(values)))
    return tuple(points)


def accuracy(groups: Sequence[Group]) -> list[Series]:
    """The curve of every group that was measured at all."""
    found = [Series(group.label, slot, over_seeds(group.runs)) for slot, group in enumerate(groups)]
    return [series for series in found if series.points]
