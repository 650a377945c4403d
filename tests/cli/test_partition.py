"""`headwater partition`: numbers, figure and manifest of a split, without training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headwater.partition.partition import Partition

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
    means = [line for line in told.out.splitlines() if line.startswith("mean label distance")]
    assert ["total variation" in line for line in means] == [True, False]
    assert ["Jensen–Shannon" in line for line in means] == [False, True]
    assert all("clients 0." in line and "sectors 0." in line for line in means)


def test_json_holds_the_same(call: Call, npz: Path, tmp_path: Path) -> None:
    words = ("--set", f"data.name={npz}", "--set", "partition.clients=5", "--out", tmp_path / "p", "--quiet")
    facts = json.loads(call("partition", *words, "--json").out)
    assert len(facts["clients"]) == 5
    assert sum(row["size"] for row in facts["sectors"]) == sum(map(sum, facts["counts"]))
    for distance in ("total_variation", "jensen_shannon"):
        mean = facts[f"mean_{distance}"]
        assert 0 <= mean["sectors"] <= mean["clients"] <= 1
        by_hand = sum(row["size"] * row[distance] for row in facts["clients"] if row["size"])
        assert mean["clients"] == pytest.approx(by_hand / sum(row["size"] for row in facts["clients"]))


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
    assert (tmp_path / "runs/partition-small-001/partition.json").exists()


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


class TestGivenBack:
    """A manifest as the split of the next command."""

    def test_the_command_shows_it_again(self, call: Call, npz: Path, tmp_path: Path) -> None:
        words = ("partition", "--set", f"data.name={npz}", "--quiet", "--json")
        first = json.loads(call(*words, "--seed", 3, "--set", "partition.sectors=3", "--out", tmp_path / "p").out)
        given = ("--set", "partition.scheme=manifest", "--set", f"partition.manifest={tmp_path / 'p/partition.json'}")
        again = json.loads(call(*words, *given, "--out", tmp_path / "q").out)
        for key in ("sha256", "clients", "sectors", "counts"):
            assert again[key] == first[key]
        assert (tmp_path / "q/partition.json").read_text() == (tmp_path / "p/partition.json").read_text()

    def test_a_run_takes_it_and_its_configuration_repeats_the_run(
        self, call: Call, small: tuple[str, ...], tmp_path: Path
    ) -> None:
        quick = [word for word in small if word not in ("--engine", "inline")]
        call("partition", *quick, "--seed", 4, "--out", tmp_path / "p")
        given = ("--set", "partition.scheme=manifest", "--set", f"partition.manifest={tmp_path / 'p/partition.json'}")
        assert call("run", "fedavg", *small, *given, "--rounds", 1, "--out", tmp_path / "a").status == 0
        assert call("run", tmp_path / "a/config.toml", "--quiet", "--out", tmp_path / "b").status == 0
        results = [json.loads((tmp_path / name / "result.json").read_text()) for name in "ab"]
        sha = json.loads((tmp_path / "p/partition.json").read_text())["sha256"]
        assert [each["partition_sha256"] for each in results] == [sha, sha]
        assert results[0]["model_sha256"] == results[1]["model_sha256"]
        # What the run left in its directory serves as well.
        own = ("--set", "partition.scheme=manifest", "--set", f"partition.manifest={tmp_path / 'a'}")
        assert call("run", "fedavg", *small, *own, "--rounds", 1, "--out", tmp_path / "c").status == 0
        assert json.loads((tmp_path / "c/result.json").read_text())["model_sha256"] == results[0]["model_sha256"]

    def test_one_of_other_data_is_a_sentence(self, call: Call, npz: Path, tmp_path: Path) -> None:
        words = ("partition", "--set", f"data.name={npz}", "--quiet", "--out", tmp_path / "p")
        call(*words)
        given = ("--set", "partition.scheme=manifest", "--set", f"partition.manifest={tmp_path / 'p'}")
        told = call(*words, *given, "--set", "data.fraction=0.5")
        assert (told.status, told.out) == (2, "")
        assert "is a split of other data" in told.err
        assert "data.fraction = 1.0" in told.err


class TestNames:
    """Data that came split has names of its own."""

    @pytest.fixture
    def sites(self, tmp_path: Path) -> tuple[str, ...]:
        rows = ["width,site,town,kind"]
        rows += [f"{n * 7 % 11},site {n % 6},{'east' if n % 6 < 2 else 'west [b]'},{'ab'[n % 2]}" for n in range(240)]
        (tmp_path / "own.csv").write_text("\n".join(rows))
        keys = (f"data.name={tmp_path / 'own.csv'}", "data.client=site", "data.sector=town", "data.label=kind")
        return tuple(word for key in keys for word in ("--set", key))

    def test_the_tables_and_the_manifest_have_them(self, call: Call, sites: tuple[str, ...], tmp_path: Path) -> None:
        told = call("partition", *sites, "--out", tmp_path / "p", "--quiet")
        assert (told.status, told.err) == (0, "")
        for name in (*(f"site {n}" for n in range(6)), "east", "west [b]"):
            assert name in told.out
        manifest = json.loads((tmp_path / "p/partition.json").read_text())
        assert manifest["client_names"] == [f"site {n}" for n in range(6)]
        assert manifest["sector_names"] == ["east", "west [b]"]
        assert manifest["sectors"] == [0, 0, 1, 1, 1, 1]
        assert manifest["made_with"]["data.name"].endswith("own.csv")

    def test_machine_output_has_them_too(self, call: Call, sites: tuple[str, ...], tmp_path: Path) -> None:
        facts = json.loads(call("partition", *sites, "--out", tmp_path / "p", "--quiet", "--json").out)
        assert facts["sector_names"] == ["east", "west [b]"]
        assert len(facts["client_names"]) == len(facts["clients"]) == 6
