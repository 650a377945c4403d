"""The confusion matrix."""

from __future__ import annotations

import re
from dataclasses import replace

from headwater.report.confusion import card_of
from headwater.report.groups import Group
from headwater.report.runs import read


def test_counts_of_all_seeds_together(fake, tmp_path):
    runs = [
        read(fake(seed=seed, classes=("cat", "dog"), result={"confusion": table}).write(tmp_path / str(seed)))
        for seed, table in ((0, [[8, 2], [1, 9]]), (1, [[7, 3], [0, 10]]))
    ]
    drawn = card_of(Group("x", tuple(runs)), "c")
    assert set(re.findall(r"<title>(\w+ taken for \w+: \d+) \(", drawn)) == {
        "cat taken for cat: 15",
        "cat taken for dog: 5",
        "dog taken for cat: 1",
        "dog taken for dog: 19",
    }
    assert re.findall(r">(\d+)</text>", drawn) == ["75", "25", "5", "95"]
    assert "cat taken for dog (25.0\u00a0%); dog taken for cat (5.0\u00a0%)." in drawn
    assert "2 seeds together" in drawn


def test_classes_the_test_set_lacks_and_perfect_models(fake, tmp_path):
    run = read(
        fake(classes=("a", "b", "c"), result={"confusion": [[5, 0, 0], [0, 0, 0], [0, 0, 3]]}).write(tmp_path / "a")
    )
    drawn = card_of(Group("x", (run,)), "c")
    assert drawn.count('class="right"') == 2
    assert "No mistakes" in drawn


def test_a_hundred_classes_without_figures(fake, tmp_path):
    run = read(fake(classes=[f"class {at}" for at in range(100)]).write(tmp_path / "a"))
    drawn = card_of(Group("x", (run,)), "c")
    assert drawn.count('class="right"') == 100
    assert '<g class="figures" aria-hidden="true"></g>' in drawn


def test_absent_or_odd_matrices_are_left_out(fake, tmp_path):
    run = read(fake().write(tmp_path / "a"))
    for odd in (None, [], [[1, 2]], "x", {"a": 1}):
        assert card_of(Group("x", (replace(run, result={"confusion": odd}),)), "c") == ""
