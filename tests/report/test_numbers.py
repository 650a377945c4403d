"""Numbers as people read them, and axes with round ticks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.report.numbers import count, cover, duration, log_ticks, number, percent, short_size, size, ticks


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1.00 kB"),
        (1000, "1.00 kB"),
        (12345, "12.3 kB"),
        (999960, "1.00 MB"),
        (177704000, "178 MB"),
        (2500000000.0, "2.50 GB"),
        (7200000000000000.0, "7200 TB"),
        (None, "–"),
    ],
)
def test_sizes(value, shown):
    assert size(value).replace("\u00a0", " ") == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.02, "0.02 s"),
        (9.04, "9.0 s"),
        (59.9, "59.9 s"),
        (59.97, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7300, "2 h 02 min"),
        (None, "–"),
    ],
)
def test_durations(value, shown):
    assert duration(value).replace("\u00a0", " ") == shown


def test_percentages_and_counts():
    assert percent(0.98765).replace("\u00a0", " ") == "98.8 %"
    assert percent(None) == "–"
    assert count(17.666) == "17.7"
    assert count(1200) == "1\u202f200"
    assert count(3.0) == "3"
    assert short_size(100_000).replace("\u00a0", " ") == "100 kB"


def test_only_finite_numbers_are_numbers():
    assert [number(value) for value in (1, 0.5, True, None, "1", math.nan, -math.inf, [1])] == [1.0, 0.5] + [None] * 6


spans = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(spans, st.integers(2, 9))
def test_ticks_lie_inside_and_are_few(span, most):
    found = ticks(*span, most)
    slack = 1e-6 * (1 + max(map(abs, span)))
    assert 1 <= len(found) <= most
    assert all(span[0] - slack <= value <= span[1] + slack for value in found)


@given(spans, st.integers(4, 9))
def test_covering_ticks_enclose_the_span(span, most):
    found = cover(*span, most)
    slack = 1e-6 * (1 + max(map(abs, span)))
    assert 2 <= len(found) <= most
    assert found[0] <= span[0] + slack
    assert found[-1] >= span[1] - slack


@given(st.integers(0, 500), st.integers(1, 5000))
def test_ticks_of_rounds_are_whole(low, more):
    assert all(value == int(value) for value in ticks(low, low + more, 7, whole=True))


def test_examples_of_axes():
    assert ticks(1, 20, 7, whole=True) == [5, 10, 15, 20]
    assert ticks(1, 3, 7, whole=True) == [1, 2, 3]
    assert ticks(4, 4) == [4]
    assert cover(61.2, 93.5) == [60, 70, 80, 90, 100]
    assert cover(90, 90)[0] < 90 < cover(90, 90)[-1]
    assert cover(0, 0)[0] < 0 < cover(0, 0)[-1]
    assert log_ticks(3e4, 4e8, 5) == [1e5, 1e6, 1e7, 1e8]
    assert log_ticks(8, 60, 6) == [10, 20, 50]
    assert len(log_ticks(1, 1e12, 5)) <= 5
