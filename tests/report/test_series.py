"""Curves over seeds."""

from __future__ import annotations

import pytest

from headwater.report.groups import Group
from headwater.report.runs import read
from headwater.report.series import accuracy, over_seeds


def test_mean_lowest_and_highest_seed(fake, tmp_path):
    made = [fake(seed=seed) for seed in (0, 1, 2)]
    points = over_seeds([read(each.write(tmp_path / str(each.seed))) for each in made])
    values = [each.rows()[4]["accuracy"] for each in made]
    assert [point.round for point in points] == list(range(1, 9))
    assert points[4].value == pytest.approx(sum(values) / 3)
    assert (points[4].low, points[4].high, points[4].seeds) == (min(values), max(values), 3)
    assert points[4].bytes == 5 * 4 * made[0].model_bytes


def test_a_seed_that_stops_leaves_a_tail(fake, tmp_path):
    runs = [read(fake(seed=0).write(tmp_path / "a")), read(fake(seed=1, stop=3).write(tmp_path / "b"))]
    (series,) = accuracy([Group("FedAvg", tuple(runs))])
    assert [point.seeds for point in series.points] == [2, 2, 2, 1, 1, 1, 1, 1]
    assert [point.round for point in series.full] == [1, 2, 3]
    assert [point.round for point in series.tail] == [3, 4, 5, 6, 7, 8]
    assert series.points[5].value == runs[0].curve()[5][1]


def test_rounds_that_one_seed_skipped_are_left_out(fake, tmp_path):
    runs = [read(fake(seed=seed, every=every).write(tmp_path / str(seed))) for seed, every in ((0, 1), (1, 3))]
    assert [point.round for point in over_seeds(runs)] == [3, 6, 8]


def test_bytes_never_go_back(fake, tmp_path):
    runs = [
        read(fake(seed=0, trips=1).write(tmp_path / "a")),
        read(fake(seed=1, trips=9, stop=4).write(tmp_path / "b")),
    ]
    sent = [point.bytes for point in over_seeds(runs)]
    assert sent == sorted(sent)


def test_a_run_without_measurements_has_no_curve(fake, tmp_path):
    run = read(fake(stop=2, every=5).write(tmp_path / "a"))
    assert accuracy([Group("x", (run,))]) == []
    assert run.accuracy is None


def test_any_number_of_a_row_can_be_a_curve(fake, tmp_path):
    run = read(fake(distils=True).write(tmp_path / "a"))
    points = over_seeds([run], lambda row: row["distill"]["s0"]["student_before"])
    assert [point.value for point in points] == [row["student_before"] for row in run.rows]
