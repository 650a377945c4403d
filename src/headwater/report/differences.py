"""Paired differences of methods to the first one: the same seed has the same data and split for every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.core.statistics import mean_interval
from headwater.report.grouping import MethodRuns

FEWEST = 2  # seeds for an interval
FOR_RANKS = 5  # seeds for the counts of wins and Wilcoxon's test


@dataclass(frozen=True)
class Difference:
    """Accuracy of a method minus that of another one, over seeds that both have.

    Args:
        seeds: how many pairs there are.
        mean: mean difference.
        half: half the width of its paired 95 % t interval; not a number for a single pair.
        wins: pairs in which the method is better; None with fewer than five pairs.
        losses: pairs in which it is worse, likewise.
        wilcoxon: p value of Wilcoxon's signed-rank test, likewise; None also if all differences are zero.
    """

    seeds: int
    mean: float
    half: float
    wins: int | None = None
    losses: int | None = None
    wilcoxon: float | None = None

    @property
    def low(self) -> float:
        """Lower end of the interval; no accuracy can be more than 1 below another one."""
        return max(-1.0, self.mean - self.half)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return min(1.0, self.mean + self.half)

    @property
    def star(self) -> bool:
        """Whether the interval does not contain zero."""
        return abs(self.mean) > self.half

    @property
    def text(self) -> str:
        """In percentage points, with the interval if there is one."""
        ends = f" [{100 * self.low:+.1f}, {100 * self.high:+.1f}]" if self.seeds >= FEWEST else ""
        return f"{100 * self.mean:+.1f}{ends}".replace("-", "−")


def difference(one: MethodRuns, other: MethodRuns) -> Difference | None:
    """The paired difference of two methods; None without a common seed."""
    mine, base = ({run.seed: run.accuracy for run in each.counted if run.accuracy is not None} for each in (one, other))
    gaps = [mine[seed] - base[seed] for seed in sorted(mine.keys() & base.keys())]
    if not gaps:
        return None
    mean, half = mean_interval(gaps)
    middle = (len(gaps), mean, math.nan if half is None else half)
    if len(gaps) < FOR_RANKS:
        return Difference(*middle)
    wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return Difference(*middle, wins, losses, _wilcoxon(gaps) if wins or losses else None)


def differences(groups: Sequence[MethodRuns]) -> list[Difference | None]:
    """The difference of each group to the first one; None for that one, and where there are fewer than two pairs.

    Args:
        groups: the runs of each method.
    """
    found = [difference(each, groups[0]) for each in groups[1:]]
    return [None, *(each if each and each.seeds >= FEWEST else None for each in found)]


def _wilcoxon(gaps: Sequence[float]) -> float:
    from scipy.stats import wilcoxon

    return float(wilcoxon(gaps, method="exact" if 0.0 not in gaps and len(gaps) <= 50 else "approx").pvalue)
