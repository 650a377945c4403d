"""`headwater partition`: numbers, figure and manifest of a split, without training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headwater.partition.base import Partition

Call = Callable[..., Any]


def test_it_shows_distances_and_writes_figure_and_manifest(call: Call, npz: Path, tmp_path: Path) -> None:
    words = ("--set", f"data.name={npz}", "--set", "partition.clients=5", "--out", tmp_path / "p", "--quiet")
    told = call("partition", *words)
    assert (told.status, told.err) == (0, "")
    for text in ("clients", "sectors", "total variation", "Jensen–Shannon", "sha256", "partition.png"):
        assert text in told.out
    with Image.open(tmp_path / "p/partition.png") as picture:
        assert min(picture.size) > 100
    manifest = json.loads((tmp_path / "p/partition.json").read_text())
    assert Partition.from_manifest(manifest).clients == 5
    assert manifest["sha256"] in told.out


def test_json_holds_the_same(call: Call, npz: Path, tmp_path: Path) -> None:
    words = ("--set", f"data.name={npz}", "--set", "partition.clients=5", "--out", tmp_path / "p", "--quiet")
    facts = json.loads(call("partition", *words, "--json").out)
    assert len(facts["clients"]) == 5
    assert sum(row["size"] for row in facts["sectors"]) == sum(map(sum, facts["counts"]))
    assert 0 <= facts["mean_total_variation"]["sectors"] <= facts["mean_total_variation"]["clients"] <= 1


def test_the_same_split_is_shown_again_and_another_only_by_force(call: Call, npz: Path, tmp_path: Path) -> None:
    words = ("partition", "--set", f"data.name={npz}", "--out", tmp_path / "p", "--quiet", "--json")
    first = call(*words)
    assert call(*words) == first
    assert call(*words, "--seed", 1).status == 2
    assert call(*words, "--seed", 1, "--force").out != first.out


def test_a_run_with_the_same_settings_uses_this_very_split(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    quick = [word for word in small if word not in ("--engine", "inline")]
    sha = json.loads(call("partition", *quick, "--seed", 4, "--out", tmp_path / "p", "--json").out)["sha256"]
    call("run", "fedavg", *small, "--seed", 4, "--rounds", 1, "--out", tmp_path / "r")
    assert json.loads((tmp_path / "r/result.json").read_text())["partition_sha256"] == sha


def test_a_preset_shows_its_own_split(call: Call, npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sets = ("--set", f"data.name={npz}", "--set", "partition.scheme=iid")
    told = call("partition", "demo", *sets, "--json", "-q")
    assert len(json.loads(told.out)["clients"]) == 20
    assert (tmp_path / "runs/partition-small-seed0/partition.json").exists()


def test_a_large_population_shows_its_first_clients(call: Call, npz: Path, tmp_path: Path) -> None:
    words = ["partition", "--set", f"data.name={npz}", "--out", tmp_path / "p", "--quiet", "--set", "partition.size=5"]
    words += ["--set", "partition.scheme=drawn", "--set", "partition.clients=20000", "--set", "partition.sectors=2"]
    told = call(*words, "--json")
    assert (told.status, told.err) == (0, "")
    facts = json.loads(told.out)
    assert facts["counted"] == {"first": 1000, "of": 20_000}
    assert len(facts["clients"]) == len(facts["counts"]) == 1000
    assert sum(row["size"] for row in facts["sectors"]) == 5000
    assert (tmp_path / "p/partition.json").stat().st_size < 60_000
