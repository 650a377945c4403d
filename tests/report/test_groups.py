"""Which runs are seeds of one another."""

from __future__ import annotations

from headwater.report.groups import differing, group
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
