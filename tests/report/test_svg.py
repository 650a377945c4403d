"""The parts charts are made of."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.report.svg import Axis, accuracy_axis, cut, esc, script_json, spread_labels


@given(st.lists(st.floats(0, 300), min_size=1, max_size=20))
def test_labels_never_touch_and_keep_their_order(wishes):
    found = spread_labels([(0, 50, wish) for wish in wishes], 300)
    ordered = [spot for _, _, spot in sorted(zip(wishes, range(len(wishes)), found, strict=True))]
    assert all(after - before >= 14 - 1e-6 for before, after in itertools.pairwise(ordered))
    assert min(found) > -1e-6
    assert max(found) <= 298 + 1e-6


def test_labels_with_room_stay_where_they_want_to_be():
    assert spread_labels([(0, 40, 100), (60, 90, 100), (0, 40, 150)], 300) == [100, 100, 150]
    assert spread_labels([(0, 40, 100), (0, 40, 100)], 300) == [93, 107]


def test_shares_on_both_kinds_of_axes():
    assert Axis(10, 30, (), "").share(15) == 0.25
    log = Axis(1, 100, (), "", log=True)
    assert log.share(10) == pytest.approx(0.5)
    assert log.share(0) == 0, "what cannot be on the axis lies at its beginning"


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (1.0, 1.0), (0.5, 0.5), (0.0, 1.0), (0.993, 0.994), (0.31, 0.87)]
)
def test_accuracies_have_an_axis_inside_0_and_100(low, high):
    axis = accuracy_axis(low, high)
    assert 0 <= axis.low <= low
    assert high <= axis.high <= 1
    assert axis.high - axis.low >= 0.025
    assert 2 <= len(axis.ticks) <= 6


def test_text_cannot_become_markup():
    assert esc("<b>\"&'\x00\x1b\ud800") == "&lt;b&gt;&quot;&amp;&#x27;\ufffd\ufffd\ufffd"
    held = script_json({"name": "</script><!--&"})
    assert "<" not in held
    assert json.loads(held) == {"name": "</script><!--&"}


def test_long_names_are_cut():
    assert cut("FedHEAD", 7) == "FedHEAD"
    assert cut("FedHEAD (alpha 0.1)", 10) == "FedHEAD (…"
