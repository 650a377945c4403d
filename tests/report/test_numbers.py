"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from headwater.report.numbers import count, duration, number, percent, size


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


def test_only_finite_numbers_are_numbers():
    assert [number(value) for value in (1, 0.5, True, None, "1", math.nan, -math.inf, [1])] == [1.0, 0.5] + [None] * 6
