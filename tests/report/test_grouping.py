"""Runs grouped by method, and curves over seeds."""

from __future__ import annotations

import pytest

from headwater.report.grouping import MethodRuns, accuracy, differing, group, over_seeds
from headwater.report.runs import find, read


def test_seeds_belong_together_and_methods_keep_their_order(comparison, tmp_path):
    found = group(find(comparison(tmp_path, seeds=(1, 0))))
    assert [each.label for each in found.groups] == ["FedAvg", "FedDF", "FedHEAD", "FedHEAD+"]
    assert [[run.seed for run in each.runs] for each in found.groups] == [[0, 1]] * 4
    assert found.dropped == ()


def test_an_unfinished_seed_joins_its_finished_siblings(fake, tmp_path):
    fake(method="fedhead", label="FedHEAD", seed=0, stop=2).write(tmp_path / "a")
    fake(method="fedhead", label="FedHEAD", seed=1).write(tmp_path / "b")
    (only,) = group(find(tmp_path)).groups
    assert only.label == "FedHEAD"
    assert [run.seed for run in only.counted] == [1]
    assert len(only.runs) == 2


def test_cells_of_a_sweep_are_not_averaged_as_seeds(fake, tmp_path):
    for name, alpha, settings in (("a", 0.1, {}), ("b", 1.0, {}), ("c", 1.0, {"leader": "fixed"})):
        for seed in (0, 1):
            fake(alpha=alpha, algorithm=settings, seed=seed).write(tmp_path / name / str(seed))
    found = group(find(tmp_path)).groups
    assert [each.label for each in found] == [
        "FedAvg (alpha 0.1, leader unset)",
        "FedAvg (alpha 1.0, leader unset)",
        "FedAvg (alpha 1.0, leader fixed)",
    ]
    assert differing([each.runs for each in found]) == ["partition.alpha", "algorithm.leader"]


def test_how_a_run_was_carried_out_does_not_matter(fake, tmp_path):
    first, second = fake(seed=0).write(tmp_path / "a"), fake(seed=1, every=2).write(tmp_path / "b")
    text = (second / "config.toml").read_text()
    (second / "config.toml").write_text(
        text.replace('name = "inline"', 'name = "pool"').replace("workers = 1", "workers = 4")
    )
    assert len(group([read(first), read(second)]).groups) == 1


def test_a_repeated_seed_counts_once_and_the_fuller_run_is_kept(fake, tmp_path):
    short, whole = fake(stop=2).write(tmp_path / "short"), fake().write(tmp_path / "whole")
    copy = fake().write(tmp_path / "zcopy")
    found = group([read(short), read(whole), read(copy)])
    assert [run.path for each in found.groups for run in each.runs] == [whole]
    assert set(found.dropped) == {short, copy}


def test_names_stay_apart_even_when_labels_collide(fake, tmp_path):
    fake(method="fedavg", label="mine").write(tmp_path / "a")
    fake(method="fedprox", label="mine").write(tmp_path / "b")
    assert [each.label for each in group(find(tmp_path)).groups] == ["mine (name fedavg)", "mine (name fedprox)"]


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
    (series,) = accuracy([MethodRuns("FedAvg", tuple(runs))])
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
    assert accuracy([MethodRuns("x", (run,))]) == []
    assert run.accuracy is None


def test_any_number_of_a_row_can_be_a_curve(fake, tmp_path):
    run = read(fake(distils=True).write(tmp_path / "a"))
    points = over_seeds([run], lambda row: row["distill"]["s0"]["student_before"])
    assert [point.value for point in points] == [row["student_before"] for row in run.rows]
