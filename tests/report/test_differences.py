"""Paired differences of methods to the first one, against values computed by hand and by scipy."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from headwater.report.differences import differences
from headwater.report.grouping import MethodRuns
from headwater.report.runs import RunRecord


def runs(label: str, accuracies: dict[int, float]) -> MethodRuns:
    made = [
        RunRecord(Path(), label, label, seed, {}, [], {"accuracy": value, "label": label}, None)
        for seed, value in accuracies.items()
    ]
    return MethodRuns(label, tuple(made))


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    base, mine = [0.5, 0.6, 0.7], [0.6, 0.65, 0.8]
    first, found = differences([runs("a", dict(enumerate(base))), runs("b", dict(enumerate(mine)))])
    assert first is None
    assert found is not None
    interval = stats.ttest_rel(mine, base).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.mean == pytest.approx(0.25 / 3)
    assert found.star
    assert found.wins is None
    assert found.wilcoxon is None


def test_only_seeds_that_both_have_are_paired() -> None:
    _, found = differences([runs("a", {0: 0.5, 1: 0.5, 2: 0.9}), runs("b", {1: 0.6, 0: 0.7, 7: 0.1})])
    assert found is not None
    assert found.seeds == 2
    assert found.mean == pytest.approx(0.15)
    assert differences([runs("a", {0: 0.5}), runs("b", {0: 0.6})]) == [None, None]


def test_five_seeds_give_counts_and_wilcoxon() -> None:
    base, mine = [0.5] * 5, [0.6, 0.7, 0.55, 0.58, 0.45]
    _, found = differences([runs("a", dict(enumerate(base))), runs("b", dict(enumerate(mine)))])
    assert found is not None
    assert (found.wins, found.losses) == (4, 1)
    assert found.wilcoxon == pytest.approx(stats.wilcoxon([m - b for m, b in zip(mine, base, strict=True)]).pvalue)
    assert not found.star
    _, same = differences([runs("a", dict(enumerate(base))), runs("b", dict(enumerate(base)))])
    assert same is not None
    assert (same.wins, same.losses, same.wilcoxon, same.star) == (0, 0, None, False)


def test_a_star_needs_an_interval_away_from_zero() -> None:
    _, better = differences([runs("a", {0: 0.5, 1: 0.6, 2: 0.7}), runs("b", {0: 0.6, 1: 0.71, 2: 0.8})])
    _, worse = differences([runs("a", {0: 0.6, 1: 0.71, 2: 0.8}), runs("b", {0: 0.5, 1: 0.6, 2: 0.7})])
    assert better is not None
    assert worse is not None
    assert better.star
    assert worse.star
    assert worse.high < 0 < better.low
