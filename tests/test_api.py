"""`hw.run` and `hw.compare`: keywords, own data, own models, own methods; nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import headwater as hw

QUICK: dict[str, Any] = {"clients": 4, "rounds": 2, "local__epochs": 1, "engine": "inline"}


@pytest.fixture(scope="module")
def mine() -> hw.Data:
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (rng.normal(size=(240, 4)) * 0.3 + np.eye(3, 4)[y]).astype(np.float32)
    return hw.Data(x[:180], y[:180], x[180:], y[180:])


class TestRun:
    def test_it_gives_numbers_history_model_and_ledger(self, mine: hw.Data) -> None:
        run = hw.run("fedhead", data=mine, sectors=2, alpha=0.5, seed=0, **QUICK)
        low, high = run.accuracy_ci95
        assert 0 <= low <= run.accuracy <= high <= 1
        assert [row["round"] for row in run.history] == [1, 2]
        assert run.model(mine.test.x).shape == (60, 3)
        assert run.ledger.bytes("server_sector") > 0

    def test_without_out_nothing_is_left_on_disk(
        self, mine: hw.Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        run = hw.run("fedavg", data=mine, **QUICK)
        assert list(tmp_path.iterdir()) == []
        assert run.report(tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

    def test_with_out_the_files_are_there(self, mine: hw.Data, tmp_path: Path) -> None:
        run = hw.run("fedavg", data=mine, out=tmp_path / "a", **QUICK)
        assert (tmp_path / "a/result.json").exists()
        assert run.directory == tmp_path / "a"

    def test_a_model_of_ones_own_may_be_a_lambda_or_a_class(self, mine: hw.Data) -> None:
        run = hw.run(
            "fedavg", data=mine, model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), **QUICK
        )
        assert isinstance(run.model, nn.Sequential)

    def test_an_instance_of_a_method_equals_the_same_words(self, mine: hw.Data) -> None:
        made = hw.FedHead(local=hw.LocalSpec(epochs=1, lr=0.05), sector=hw.DistillSpec(epochs=1), leader="fixed")
        by_instance = hw.run(made, data=mine, clients=4, rounds=1, engine="inline")
        by_name = hw.run(
            "fedhead",
            data=mine,
            clients=4,
            rounds=1,
            engine="inline",
            leader="fixed",
            local=hw.LocalSpec(epochs=1, lr=0.05),
            sector=hw.DistillSpec(epochs=1),
        )
        assert by_instance.result["model_sha256"] == by_name.result["model_sha256"]
        assert by_instance.config == by_name.config

    def test_a_run_equals_the_commands(self, mine: hw.Data, tmp_path: Path) -> None:
        from headwater.cli.app import main

        path = tmp_path / "mine.npz"
        np.savez(path, x_train=mine.train.x, y_train=mine.train.y, x_test=mine.test.x, y_test=mine.test.y)
        run = hw.run("fedavg", data=path, **QUICK)
        words = [
            "run",
            "fedavg",
            "--set",
            f"data.name={path}",
            "--set",
            "partition.clients=4",
            "--set",
            "local.epochs=1",
        ]
        assert main([*words, "--rounds", "2", "--engine", "inline", "--quiet", "--out", str(tmp_path / "a")]) == 0
        assert run.result["model_sha256"] in (tmp_path / "a/result.json").read_text()

    def test_it_tells_a_watcher(self, mine: hw.Data) -> None:
        seen: list[tuple[str, int]] = []
        hw.run("fedavg", data=mine, watch=lambda event: seen.append((event.kind, event.round)), **QUICK)
        assert [item for item in seen if item[0] != "task"] == [("start", 0), ("round", 1), ("round", 2), ("end", 2)]

    @pytest.mark.thorough
    @pytest.mark.parametrize("engine", ["inline", "pool"])
    def test_it_works_unguarded_from_standard_input(self, engine: str, tmp_path: Path) -> None:
        script = (
            "import headwater as hw, torch\n"
            "run = hw.run('fedavg', model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),"
            f" clients=3, rounds=1, local__epochs=1, engine={engine!r}, workers=2)\n"
            "print(run.result['model_sha256'])\n"
        )
        done = subprocess.run(
            [sys.executable, "-"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.strip()) == 64


class TestKeywords:
    @pytest.mark.parametrize(
        ("keywords", "words"),
        [
            ({"lr": 0.1}, "'lr' could mean several settings; write local__lr or sector__lr or server__lr"),
            ({"ronds": 3}, "there is no setting called 'ronds'; did you mean 'rounds'?"),
            ({"local__lrr": 1}, "there is no setting called 'local.lrr'; did you mean 'local.lr'?"),
            ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
            ({"leader": "fix"}, "algorithm.leader must be one of"),
            ({"server__lr": 0.1}, "server.lr has no effect, since method 'fedhead' has no server stage"),
            ({"model": nn.Linear(2, 2)}, "model must be a name or a function that makes a model"),
            ({"engine": "pol"}, "engine.name must be one of"),
            ({"data": "digit"}, "did you mean 'digits'?"),
        ],
    )
    def test_a_mistake_is_a_sentence(self, keywords: dict[str, Any], words: str) -> None:
        with pytest.raises(hw.ConfigError) as caught:
            hw.run("fedhead", **keywords)
        assert words in str(caught.value)

    def test_a_class_instead_of_an_instance_is_a_sentence(self) -> None:
        with pytest.raises(hw.ConfigError, match="an instance such as"):
            hw.run(hw.FedHead)  # type: ignore[arg-type]

    def test_none_takes_a_default_away(self, mine: hw.Data) -> None:
        run = hw.run("fedhead", data=mine, sector__patience=None, sector__restore="last", **QUICK)
        assert 'patience = "none"' in run.config


class TestCompare:
    def test_the_table_has_a_row_a_method(self, mine: hw.Data) -> None:
        found = hw.compare(["fedavg", "fedhead"], data=mine, seeds=[0, 1], sector__epochs=1, **QUICK)
        assert len(found.runs) == 4
        assert [row["method"] for row in found.rows()] == ["fedavg", "fedhead"]
        assert list(found.table().index) == ["fedavg", "fedhead"]
        assert str(found).startswith("| Method")
        assert "±" in str(found)
        with pytest.raises(hw.ConfigError, match=r"between 0 and 1, got 60; 0\.8 stands for 80 %"):
            found.rows(target=60)

    def test_instances_and_names_stand_side_by_side(self, mine: hw.Data, tmp_path: Path) -> None:
        fixed = hw.FedAvg(local=hw.LocalSpec(epochs=1, lr=0.01), by="uniform")
        found = hw.compare([fixed, "local"], data=mine, out=tmp_path, clients=4, rounds=1, engine="inline")
        assert [run.result["algorithm"] for run in found.runs] == ["fedavg", "local"]
        assert (tmp_path / "local/seed-0/result.json").exists()

    @pytest.mark.parametrize(
        ("methods", "keywords", "words"),
        [
            ([], {}, "at least one method"),
            (["fedavg"], {"seeds": [1, 1]}, "seeds that differ"),
            (["fedavg"], {"seed": 1}, "takes seeds"),
            (["fedavg", "local"], {"sector__lr": 0.1}, "sector.lr has no effect"),
            (["fedavg", "fedavgg"], {}, "did you mean 'fedavg'?"),
        ],
    )
    def test_a_mistake_is_a_sentence(self, methods: list[str], keywords: dict[str, Any], words: str) -> None:
        with pytest.raises(hw.ConfigError) as caught:
            hw.compare(methods, **keywords)
        assert words in str(caught.value)


@pytest.mark.thorough
def test_a_comparison_tunes_every_method_first() -> None:
    small: dict[str, Any] = {"clients": 3, "rounds": 1, "local__epochs": 1, "progress": False}
    both = hw.compare(["fedavg", "fedprox"], tune={"local__lr": [1e-7, 0.01]}, **small)
    assert [run.result["tuned"]["settings"] for run in both.runs] == [{"local.lr": "0.01"}] * 2
    assert list(both.table()["tuned rounds"]) == [6, 6]
    with pytest.raises(hw.ConfigError, match="tune takes a list of keys"):
        hw.compare(["fedavg"], tune="local.lr", **small)
