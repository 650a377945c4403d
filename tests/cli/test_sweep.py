"""`headwater sweep`: a run for every combination, once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.sweep import LONGEST, _folders, _split, axis, prepare_directories
from headwater.config import Config
from headwater.errors import OutputError
from headwater.sweep import Cell

Call = Callable[..., Any]


@pytest.fixture
def words(npz: Path, tmp_path: Path) -> list[str]:
    sets = [f"data.name={npz}", "partition.clients=4", "local.epochs=1", "model.name=linear"]
    given = ["sweep", "fedavg", "--rounds", "2", "--workers", "1", "--out", str(tmp_path / "s")]
    return [*given, *(word for pair in sets for word in ("--set", pair))]


def test_every_combination_and_seed_is_run_once_and_kept(call: Call, words: list[str], tmp_path: Path) -> None:
    grid = ["--grid", "local.lr=0.01,0.1", "--grid", "partition.alpha=0.3,1.0", "--seeds", "0,1"]
    told = call(*words, *grid)
    assert told.status == 0
    assert "4 points, 8 runs" in told.err
    assert "lr 0.01, alpha 0.3" in told.out
    assert "local.lr=0.01, partition.alpha=0.3 · seed 1" in told.err
    assert "±" in told.out
    runs = {path.parent: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("result.json")}
    found = {
        (config.local["lr"], config.partition.options["alpha"], config.seed)
        for config in (Config.from_toml((run / "config.toml").read_text()) for run in runs)
    }
    assert found == {(lr, alpha, seed) for lr in (0.01, 0.1) for alpha in (0.3, 1.0) for seed in (0, 1)}
    assert (tmp_path / "s/table.csv").read_text().count("\n") == 1 + 4
    page = (tmp_path / "s/report.html").read_text(encoding="utf-8")
    assert "<h3>Accuracy by local.lr and partition.alpha</h3>" in page
    assert str(tmp_path / "s/report.html") in told.out.replace("\n", "")

    wider = ["--grid", "local.lr=0.01,0.1,0.2", *grid[2:]]
    rows = json.loads(call(*words, *wider, "--json").out)["rows"]
    assert [row["settings"]["local.lr"] for row in rows] == ["0.01", "0.01", "0.1", "0.1", "0.2", "0.2"]
    assert all(row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"] for row in rows)
    assert {run: (run / "result.json").stat().st_mtime_ns for run in runs} == runs


@pytest.mark.thorough
def test_a_key_that_only_some_methods_have_goes_to_those(call: Call, words: list[str], tmp_path: Path) -> None:
    grid = ["--grid", "algorithm.name=fedavg,fedprox", "--grid", "algorithm.mu=0.1,1.0"]
    told = call(*words, *grid, "--json")
    assert told.status == 0
    assert len(json.loads(told.out)["rows"]) == 4
    runs = [path.parent for path in (tmp_path / "s").rglob("result.json")]
    methods = sorted(Config.from_toml((run / "config.toml").read_text()).method for run in runs)
    assert methods == ["fedavg", "fedprox", "fedprox"]  # the average is the same run whatever mu


@pytest.mark.thorough
def test_what_fails_is_shown_and_the_rest_is_there(call: Call, words: list[str]) -> None:
    sets = ["--set", "faults.bad_update=stop", "--set", "local.optimizer=sgd", "--set", "model.name=mlp"]
    told = call(*words, *sets, "--grid", "local.lr=0.01,1e38", "--set", "local.epochs=3")
    assert told.status == 2
    assert "gave numbers that are not finite" in told.out
    assert "lr 0.01" in told.out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "a sweep needs at least one --grid"),
        (["local.lr"], "--grid takes KEY=V1,V2"),
        (["local.lr="], "--grid takes KEY=V1,V2"),
        (["local.lr=0.1,0.1"], "--grid names 0.1 twice"),
        (["local.lr=0.1", "local.lr=0.2"], "--grid names local.lr twice"),
        (["seed=0,1"], "use --seeds"),
        (["local.lrr=0.1,0.2"], "there is no setting called 'local.lrr'; did you mean 'local.lr'"),
        (["algorithm.name=fedavg,fedhaed"], "'fedhaed'; did you mean 'fedhead'"),
        (["algorithm.name=fedavg", "sector.lr=0.1"], "none of fedavg has a sector stage"),
        (["local.lr=fast"], "local.lr must be a number above 0, got 'fast'"),
    ],
)
def test_a_wrong_grid_is_refused(call: Call, words: list[str], given: list[str], sentence: str) -> None:
    told = call(*words, *(word for each in given for word in ("--grid", each)))
    assert told.status == 2
    assert sentence in told.err


def test_values_may_be_lists_and_text() -> None:
    assert _split("[1,2],[3]") == ["[1,2]", "[3]"]
    assert _split("'a,b',c") == ["'a,b'", "c"]
    assert axis(" model.hidden = [200, 200], [50] ") == ("model.hidden", ["[200, 200]", "[50]"])


def test_no_two_points_share_a_directory() -> None:
    long = "local.lr=0.1, " * 12
    names = ["data.name=a/b", "data.name=a-b", "data.name=A b", f"{long}1", f"{long}2"]
    found = _folders(names)
    assert len({folder.lower() for folder in found}) == len(names)
    assert found[0] == "data.name=a-b"
    assert max(map(len, found)) == LONGEST
    assert _folders(names[3:]) == found[3:]  # whatever else is in the grid


def test_a_directory_for_two_runs_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    one, two = (Cell(name, tmp_path, Config.load("demo")) for name in ("one", "two"))
    with pytest.raises(OutputError, match="would hold two runs, one and two"):
        prepare_directories([one, two], force=True)
    assert (tmp_path / "config.toml").exists()
