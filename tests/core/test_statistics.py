from __future__ import annotations

import math

import pytest

from headwater.core import statistics


def test_ordinary_interval_is_wilsons() -> None:
    # 81 of 100: Wilson's published worked form, middle (0.81 + z²/200) / (1 + z²/100)
    low, high = statistics.ordinary_interval(81, 100)
    z2 = 1.959964**2
    middle = (0.81 + z2 / 200) / (1 + z2 / 100)
    half = 1.959964 * math.sqrt(0.81 * 0.19 / 100 + z2 / 40000) / (1 + z2 / 100)
    assert (low, high) == pytest.approx((middle - half, middle + half), abs=1e-6)


@pytest.mark.parametrize("correct", [0, 50])
def test_ordinary_interval_stays_inside_zero_and_one(correct: int) -> None:
    low, high = statistics.ordinary_interval(correct, 50)
    assert 0 <= low < high <= 1


def test_bootstrap_mean_interval_is_narrow_and_repeatable() -> None:
    """The spread of the mean of 200 resamples is about sd/√n/√200: far narrower than the ordinary interval."""
    correct = [i % 4 != 0 for i in range(1000)]
    low, high = statistics.bootstrap_mean_interval(correct, seed=0)
    assert (low, high) == statistics.bootstrap_mean_interval(correct, seed=0)
    expected = 2 * 1.972 * math.sqrt(0.75 * 0.25 / 1000) / math.sqrt(200)
    assert high - low == pytest.approx(expected, rel=0.2)
    ordinary = statistics.ordinary_interval(750, 1000)
    assert high - low < 0.1 * (ordinary[1] - ordinary[0])


def test_interval_over_seeds() -> None:
    mean, half = statistics.mean_interval([0.6, 0.7, 0.8])
    assert mean == pytest.approx(0.7)
    assert half == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-5)
    assert statistics.mean_interval([0.5]) == (0.5, None)


@pytest.mark.parametrize("freedom", [1, 2, 9, 198, 199, 200, 5000])
def test_students_t_is_that_of_scipy(freedom: int) -> None:
    from scipy import stats

    assert statistics.t_value(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)), rel=1e-13)


def test_covered_time_counts_overlaps_once() -> None:
    assert statistics.covered([(0, 2), (1, 3), (5, 6), (5.2, 5.4)]) == pytest.approx(4)
    assert statistics.covered([]) == 0


def test_weighted() -> None:
    assert statistics.weighted({"a": 1.0, "b": 0.0}, {"a": 3, "b": 1, "c": 9}) == 0.75
