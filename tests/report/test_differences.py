"""Paired differences of methods to a baseline, against values computed by hand and by scipy."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from headwater.errors import ConfigError
from headwater.report.differences import baselines, differences
from headwater.report.grouping import MethodRuns
from headwater.report.runs import RunRecord


def runs(label: str, accuracies: dict[int, float], alpha: float = 0.1) -> MethodRuns:
    made = [
        RunRecord(
            Path(), label, label, seed, {"partition": {"alpha": alpha}}, [], {"accuracy": value, "label": label}, None
        )
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


def test_the_baseline_can_be_named_and_has_the_same_data_and_split() -> None:
    groups = [
        runs(name, {0: value, 1: value}, alpha) for alpha in (0.1, 1.0) for name, value in (("a", 0.5), ("b", 0.7))
    ]
    assert baselines(groups) == [0, 0, 2, 2]
    assert baselines(groups, "b") == [1, 1, 3, 3]
    found = differences(groups, "b")
    assert [None if gap is None else round(gap.mean, 6) for gap in found] == [-0.2, None, -0.2, None]
    with pytest.raises(ConfigError, match=r"the baseline 'c' is not among what is compared.*there are: a, b"):
        baselines(groups, "c")


def test_the_text_has_interval_star_and_counts() -> None:
    """Gaps 0.1, 0.1, 0.1, 0.1, 0.2: mean 0.12, s = 0.0447214, t(0.975, 4) = 2.776445, half width 0.0555289."""
    base = dict.fromkeys(range(5), 0.5)
    _, gap = differences([runs("a", base), runs("b", base | {0: 0.7} | dict.fromkeys(range(1, 5), 0.6))])
    assert gap is not None
    assert gap.text.replace("\xa0", " ") == "+12.0 [+6.4, +17.6] * (5:0, p 0.062)"
