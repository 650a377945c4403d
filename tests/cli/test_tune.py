"""`headwater tune`: settings are chosen on the validation set alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.config import Config

Call = Callable[..., Any]


def test_the_better_setting_is_found_without_the_test_set(
    call: Call, small: tuple[str, ...], npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("tune", "fedavg", "--grid", "local.lr=0.0000001,0.01", "--budget", 3, "--json")
    facts = json.loads(call(*words, *small).out)
    assert facts["best"] == {"local.lr": "0.01"}
    assert facts["rounds"] == 3
    assert facts["cost"] == {"runs": 2, "rounds": 6, "seconds": facts["cost"]["seconds"]}
    (kept,) = (tmp_path / "runs").iterdir()
    assert sorted(file.name for file in kept.iterdir()) == ["asked.json", "tune.json"]
    arrays = dict(np.load(npz))
    arrays["y_test"] = np.roll(arrays["y_test"], 1)  # another test set changes nothing
    np.savez(tmp_path / "other.npz", **arrays)
    other = [word.replace(str(npz), str(tmp_path / "other.npz")) for word in small]
    again = json.loads(call(*words, *other).out)["rows"]
    assert [row["validation_accuracy"] for row in again] == [row["validation_accuracy"] for row in facts["rows"]]


def test_it_ends_with_what_to_type(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    words = ("tune", "fedavg", *small, "--grid", "local.lr=0.01", "--grid", "local.batch=8,16", "--budget", 1)
    told = call(*words, "--out", tmp_path / "t")
    assert told.status == 0
    assert "best on the validation set: --set local.lr=0.01 --set local.batch=" in told.out


def test_a_best_value_at_the_edge_of_the_grid_is_told(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    words = ("tune", "fedavg", *small, "--grid", "local.lr=1e-9,1e-8,0.01", "--budget", 3)
    told = call(*words, "--out", tmp_path / "t")
    assert "fedavg: local.lr=0.01 is the largest value that was tried; larger ones may be better" in told.err
    told = call(*words[:-3], "local.lr=1e-9,0.01,1e9", "--budget", 3, "--out", tmp_path / "u")
    assert (told.status, "value that was tried" in told.err) == (0, False)
    rows = ("compare", "fedavg", *small, "--rounds", 1, "--tune", "local.lr=1e-9,1e-8,0.01", "--tune-budget", 3)
    assert "fedavg: local.lr=0.01 is the largest value that was tried" in call(*rows, "--out", tmp_path / "c").err


def test_mistakes_are_sentences(
    call: Call, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        "there is no default grid for local.optimizer"
        in call("tune", "fedavg", *small, "--grid", "local.optimizer").err
    )
    assert "names local.lr twice" in call("tune", "fedavg", "--grid", "local.lr", "--grid", "local.lr=1").err
    assert "has no server.lr" in call("tune", "fedavg", *small, "--grid", "server.lr").err
    assert "there is no setting called 'local.lrr'" in call("tune", "fedavg", "--grid", "local.lrr=1").err
    told = call("tune", "fedavg", *small, "--grid", "local.lr=0.1", "--set", "data.validation=0")
    assert (told.status, "set data.validation above 0" in told.err) == (2, True)


def test_every_method_of_a_comparison_is_tuned_with_the_same_budget(
    call: Call, small: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("compare", "fedavg", "fedprox", *small, "--rounds", 1, "--seeds", "0,1", "--out", tmp_path / "c")
    words = (*words, "--tune", "local.lr", "--tune", "algorithm.mu=0.01,0.1", "--tune-budget", 2)
    rows = json.loads(call(*words, "--json").out)
    assert [(row["tuned_runs"], row["tuned_rounds"]) for row in rows] == [(5, 7), (5, 7)]  # 5 x 1, then 2 x 1 more
    for method, keys in (("fedavg", ["local.lr"]), ("fedprox", ["local.lr", "algorithm.mu"])):
        choice = json.loads((tmp_path / f"c/tune/{method}/tune.json").read_text())
        assert choice["rungs"] == [{"settings": 5, "rounds": 1}, {"settings": 2, "rounds": 2}]
        top = max(row["validation_accuracy"] for row in choice["rows"] if row["rounds"] == 2)
        assert next(row for row in choice["rows"] if row["settings"] == choice["best"])["validation_accuracy"] == top
        for seed in (0, 1):
            run = tmp_path / f"c/{method}/seed-{seed}"
            tuned = json.loads((run / "result.json").read_text())["tuned"]
            assert (list(tuned["settings"]), tuned["settings"]) == (keys, choice["best"])
            used = Config.from_toml((run / "config.toml").read_text()).local["lr"]
            assert used == pytest.approx(float(choice["best"]["local.lr"]))
    told = call(*words)
    assert "chosen on the validation set alone" in told.out
    assert "local.lr=" in (tmp_path / "c/report.html").read_text(encoding="utf-8")
    assert not list((tmp_path / "c").rglob("tuning")), "the short runs are not kept, and no report finds them"
