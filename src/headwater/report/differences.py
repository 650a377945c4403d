"""Paired differences to a baseline: the same seed has the same data and split for every method.

Everything that shows a difference takes it from here: tables of methods, `hw.compare(...).table()`, the report and the
tables of papers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.core.statistics import mean_interval
from headwater.errors import ConfigError, nearest
from headwater.report.grouping import MethodRuns, problem
from headwater.report.numbers import NBSP

FEWEST = 2  # seeds for an interval
FOR_RANKS = 5  # seeds for the counts of wins and Wilcoxon's test
LEGEND = (
    f"A difference is paired by seed and in points, with its 95{NBSP}% t-interval in brackets; * marks those whose "
    "interval does not contain zero."
)
RANKS_LEGEND = "(a:b, p) behind a difference: seeds won and lost, and the p value of Wilcoxon's signed-rank test."


@dataclass(frozen=True)
class Difference:
    """Values of one method minus those of another one, over seeds that both have.

    Args:
        seeds: how many pairs there are.
        mean: mean difference.
        half: half the width of its paired 95 % t interval; not a number for a single pair.
        wins: pairs in which the first is larger; None with fewer than five pairs.
        losses: pairs in which it is smaller, likewise.
        wilcoxon: p value of Wilcoxon's signed-rank test, likewise; None also if all differences are zero.
        largest: how far apart two values can be.
    """

    seeds: int
    mean: float
    half: float
    wins: int | None = None
    losses: int | None = None
    wilcoxon: float | None = None
    largest: float = 1.0

    @property
    def low(self) -> float:
        """Lower end of the interval; no accuracy can be more than 1 below another one."""
        return max(-self.largest, self.mean - self.half)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return min(self.largest, self.mean + self.half)

    @property
    def star(self) -> bool:
        """Whether the interval does not contain zero."""
        return abs(self.mean) > self.half

    @property
    def text(self) -> str:
        """In percentage points, with the interval if there is one."""
        return self.shown(100.0, 1)

    def shown(self, factor: float, digits: int) -> str:
        """The difference as text: the mean, its interval, the star, and the counts of seeds.

        Args:
            factor: from a value to the unit of the text.
            digits: behind the point.
        """
        mean, low, high = (f"{factor * value:+.{digits}f}" for value in (self.mean, self.low, self.high))
        text = f"{mean} [{low},{NBSP}{high}]" if self.seeds >= FEWEST else mean
        text += f"{NBSP}*" if self.star else ""
        if self.wins is not None:
            p = f", p{NBSP}{self.wilcoxon:.3f}" if self.wilcoxon is not None else ""
            text += f" ({self.wins}:{self.losses}{p})"
        return text.replace("-", "−")


def paired(mine: Mapping[int, float], base: Mapping[int, float], largest: float = 1.0) -> Difference | None:
    """The difference of two sets of values by seed; None without a common seed.

    Args:
        mine: seed → value.
        base: what is subtracted.
        largest: how far apart two values can be.
    """
    gaps = [mine[seed] - base[seed] for seed in sorted(mine.keys() & base.keys())]
    if not gaps:
        return None
    mean, half = mean_interval(gaps)
    wins = losses = p = None
    if len(gaps) >= FOR_RANKS:
        wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
        p = _wilcoxon(gaps) if wins or losses else None
    return Difference(len(gaps), mean, math.nan if half is None else half, wins, losses, p, largest)


def difference(one: MethodRuns, other: MethodRuns) -> Difference | None:
    """The paired difference in accuracy of two methods; None without a common seed."""
    mine, base = ({run.seed: run.accuracy for run in each.counted if run.accuracy is not None} for each in (one, other))
    return paired(mine, base)


def differences(groups: Sequence[MethodRuns], baseline: str | None = None) -> list[Difference | None]:
    """The difference of each group to the baseline on the same data and split.

    Args:
        groups: the runs of each method.
        baseline: as for `baselines`.

    Returns:
        For each group its difference; None for the baseline itself, and where there are fewer than two pairs.
    """
    found = [None if at == base else difference(groups[at], groups[base]) for at, base in enumerate(
        baselines(groups, baseline))]  # fmt: skip
    return [gap if gap and gap.seeds >= FEWEST else None for gap in found]


def baselines(groups: Sequence[MethodRuns], baseline: str | None = None) -> list[int]:
    """For each group, the index of the group that it is compared with: one with the same data and split.

    Args:
        groups: the runs of each method.
        baseline: label or method of the baseline; None for the first group of each problem.

    Raises:
        ConfigError: there is no such group.
    """
    names = [(each.label, each.runs[0].algorithm) for each in groups]
    if baseline is not None and not any(baseline in both for both in names):
        known = list(dict.fromkeys(label for label, _ in names))
        raise ConfigError(
            f"the baseline {baseline!r} is not among what is compared{nearest(baseline, known)} "
            f"(there are: {', '.join(known)})"
        )
    problems = [problem(each.runs[0]) for each in groups]
    found = []
    for words in problems:
        alike = [at for at, other in enumerate(problems) if other == words]
        exact = [at for at in alike if baseline == names[at][0]]
        found.append([*exact, *(at for at in alike if baseline in names[at]), *alike][0])
    return found


def _wilcoxon(gaps: Sequence[float]) -> float:
    from scipy.stats import wilcoxon

    return float(wilcoxon(gaps, method="exact" if 0.0 not in gaps and len(gaps) <= 50 else "approx").pvalue)


def gap_facts(gap: Difference | None, name: str = "difference") -> dict[str, Any]:
    """A difference as plain values for CSV and JSON; None where there is none.

    Args:
        gap: the difference.
        name: of its mean, and before its ends.
    """
    return {
        name: gap.mean if gap else None,
        f"{name}_low": gap.low if gap else None,
        f"{name}_high": gap.high if gap else None,
        "star": bool(gap and gap.star),
        "won": gap.wins if gap else None,
        "lost": gap.losses if gap else None,
        "wilcoxon_p": gap.wilcoxon if gap else None,
    }
