"""Splits that are not drawn: as the data has it, and as it was written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.config import Config
from headwater.core.rng import stream
from headwater.data.base import Data
from headwater.errors import ConfigError, DataError
from headwater.partition.manifest import Manifest
from headwater.partition.partition import Partition
from headwater.training.experiment import Experiment, prepare
from headwater.training.remarks import cautions

LABELS = np.arange(240) % 3
SITES = [f"site {client % 5}" for client in stream(0).permutation(240)]


def data(labels: Any = LABELS, **options: Any) -> Data:
    x = stream(1).normal(size=(len(labels), 4)).astype(np.float32)
    return Data(x, labels, x[:6], np.arange(6) % 3, **options)


def made(source: Data, *sets: str) -> Experiment:
    return prepare(Config.load("fedavg", ["data.name=arrays", "partition.clients=6", *sets]), data=source)


def written(folder: Path, experiment: Experiment, **changes: Any) -> str:
    """The manifest of an experiment in a file, and the pair that names it."""
    file = folder / "partition.json"
    file.write_text(json.dumps(experiment.manifest() | changes))
    return f"partition.manifest={file}"


def again(manifest: str, *sets: str, source: Data | None = None) -> Experiment:
    return made(source or data(), "partition.scheme=manifest", manifest, *sets)


SCHEMES = [
    ("dirichlet", "alpha=0.3"),
    ("dirichlet", "drop_remainders=true"),
    ("two-level", "setting=sectors"),
    ("quantity", "alpha=0.3"),
    ("shards", "shards=2"),
    ("drawn", "size=20"),
    ("drawn", "alpha=0.2"),
]


class TestManifest:
    @pytest.mark.parametrize(("scheme", "option"), SCHEMES)
    def test_it_gives_the_very_split_back(self, tmp_path: Path, scheme: str, option: str) -> None:
        sets = (f"partition.scheme={scheme}", f"partition.{option}", "partition.sectors=3", "seed=4")
        first = made(data(), *sets)
        found = again(written(tmp_path, first))  # neither the number of clients nor of sectors is said
        assert found.partition == first.partition
        assert found.partition.sectors == first.partition.sectors
        assert [found.rows[c].tolist() for c in found.rows] == [first.rows[c].tolist() for c in first.rows]
        assert found.config.partition.clients == 6
        assert found.config.partition.sectors == 3
        assert (found.split.train.x == first.split.train.x).all()

    def test_rows_mean_the_same_samples_whatever_the_seed(self, tmp_path: Path) -> None:
        """What is public is carved out by the manifest's seed; all else, such as initial weights, by the run's."""
        first = made(data(), "seed=4")
        for seed in (4, 5):
            found = again(written(tmp_path, first), f"seed={seed}")
            assert (found.split.train.x == first.split.train.x).all()
            assert (found.split.validation.x == first.split.validation.x).all()
            assert found.config.seed == seed
            assert found.manifest() == first.manifest()

    def test_the_resolved_configuration_repeats_it_from_anywhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = made(data())
        written(tmp_path, first)
        monkeypatch.chdir(tmp_path)
        found = again("partition.manifest=partition.json")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        resolved = Config.from_toml(found.config.to_toml())
        assert resolved.partition.options["sha256"] == first.partition.sha256
        twice = prepare(resolved, data=data())
        assert twice.partition == first.partition
        assert twice.config == found.config

    def test_another_split_in_its_place_is_refused(self, tmp_path: Path) -> None:
        named = written(tmp_path, made(data()))
        resolved = again(named).config
        other = made(data(), "partition.alpha=5")
        written(tmp_path, other)
        with pytest.raises(
            DataError, match=r"holds the split .* but partition\.sha256 asks for .* set partition\.sha256"
        ):
            prepare(resolved, data=data())
        free = resolved.merged({"partition": {"sha256": ""}})
        assert prepare(free, data=data()).partition == other.partition

    def test_a_directory_stands_for_the_file_in_it(self, tmp_path: Path) -> None:
        first = made(data())
        written(tmp_path, first)
        found = again(f"partition.manifest={tmp_path}")
        assert found.partition == first.partition
        assert found.config.partition.options["manifest"] == str(tmp_path / "partition.json")

    def test_one_of_a_population_says_that_samples_are_shared(self, tmp_path: Path) -> None:
        drawn = made(data(), "partition.scheme=drawn", "partition.size=20")
        found = again(written(tmp_path, drawn), "partition.local_test=0.2")
        assert found.partition.rule == drawn.partition.rule
        assert any("share samples" in told for told in cautions(found))
        plain = again(written(tmp_path, made(data())), "partition.local_test=0.2")
        assert not any("share samples" in told for told in cautions(plain))

    def test_one_without_a_word_on_its_data_is_taken_if_it_fits(self, tmp_path: Path) -> None:
        """As a user may write it: row numbers, sectors and the hash."""
        parts = Partition((np.array([0, 2]), np.array([1, 5])), (1, 0))
        (tmp_path / "partition.json").write_text(json.dumps(parts.manifest()))
        assert again(f"partition.manifest={tmp_path}").partition == parts


class TestRefuses:
    def test_no_path(self) -> None:
        with pytest.raises(ConfigError, match=r"needs partition\.manifest, the path of a partition\.json"):
            Config.load(None, ["partition.scheme=manifest"])

    def test_an_absent_file(self, tmp_path: Path) -> None:
        for missing in (tmp_path / "none.json", tmp_path):
            with pytest.raises(DataError, match=r"there is no file .* write one with `headwater partition`"):
                again(f"partition.manifest={missing}")

    @pytest.mark.parametrize("damage", ["", "{", "a,b\n1,2", '{"version": 1', "\x00\x01"])
    def test_what_is_no_json(self, tmp_path: Path, damage: str) -> None:
        (tmp_path / "partition.json").write_text(damage)
        with pytest.raises(DataError, match=r"partition\.json could not be read as JSON"):
            again(f"partition.manifest={tmp_path}")

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"sha256": "0" * 64}, "was changed"),
            ({"indices": [[0, 1], [2]]}, "names the sectors of"),
            ({"sectors": [0, 1] * 3}, "was changed"),
            ({"sectors": None}, "lists of whole numbers"),
            ({"client_names": ["a"]}, "1 names for 6 clients"),
            ({"client_names": 5}, "lists of whole numbers"),
            ({"version": 2}, "has version 2"),
        ],
    )
    def test_a_damaged_one(self, tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
        named = written(tmp_path, made(data()), **changes)
        with pytest.raises(DataError, match=rf"partition\.manifest .*partition\.json: .*{sentence}"):
            again(named)

    def test_json_that_is_no_manifest(self, tmp_path: Path) -> None:
        (tmp_path / "partition.json").write_text('{"accuracy": 0.5}')
        with pytest.raises(DataError, match="no partition manifest: it lacks version"):
            again(f"partition.manifest={tmp_path}")
        (tmp_path / "partition.json").write_text("[1, 2]")
        with pytest.raises(DataError, match="is not a JSON object"):
            again(f"partition.manifest={tmp_path}")

    @pytest.mark.parametrize("scheme", ["iid", "drawn"])
    def test_one_of_other_data(self, tmp_path: Path, scheme: str) -> None:
        """Other labels, though as many; fewer of them; and other settings that leave others to clients."""
        named = written(tmp_path, made(data(), f"partition.scheme={scheme}", "data.reference_size=20"))
        told = r"a split of other data: of 196 training samples .*here are \d+ with .*data\.reference_size = 20"
        for source in (data(LABELS[::-1].copy()), data(LABELS[:100])):
            with pytest.raises(DataError, match=told):
                again(named, "data.reference_size=20", source=source)
        with pytest.raises(DataError, match=told):
            again(named, "data.reference_size=20", "data.validation=5")

    def test_rows_that_the_data_does_not_have(self, tmp_path: Path) -> None:
        parts = Partition((np.array([0, 500]),), (0,))
        (tmp_path / "partition.json").write_text(json.dumps(parts.manifest()))
        with pytest.raises(DataError, match="other data: it names sample 500, but there are only 168 training samples"):
            again(f"partition.manifest={tmp_path}")


class TestNatural:
    def test_names_come_with_it(self, tmp_path: Path) -> None:
        towns = ["east" if name < "site 3" else "west" for name in SITES]
        first = made(data(client=SITES, sector=towns))
        assert first.partition.client_names == tuple(f"site {n}" for n in range(5))
        assert first.partition.sector_names == ("east", "west")
        assert first.partition.sectors == (0, 0, 0, 1, 1)
        assert first.manifest()["client_names"] == [f"site {n}" for n in range(5)]
        plain = Partition(first.partition.indices, first.partition.sectors)
        assert plain == first.partition  # the hash is over who holds what

    def test_a_manifest_gives_names_and_sectors_back(self, tmp_path: Path) -> None:
        """The data says who holds what but not where they are: the sectors are drawn once and kept."""
        first = made(data(client=SITES), "partition.sectors=2", "seed=3")
        for source in (data(client=SITES), data()):
            found = again(written(tmp_path, first), source=source)
            assert found.partition == first.partition
            assert found.partition.client_names == first.partition.client_names
            assert found.config.partition.scheme == "manifest"

    def test_a_manifest_that_says_otherwise_is_refused(self, tmp_path: Path) -> None:
        named = written(tmp_path, made(data()))
        with pytest.raises(ConfigError, match="this data says itself who holds which row"):
            again(named, source=data(client=SITES))

    def test_other_data_has_no_owners(self) -> None:
        with pytest.raises(ConfigError, match="'natural' is for data that is already split"):
            made(data(), "partition.scheme=natural")

    def test_its_resolved_configuration_repeats_it(self) -> None:
        first = made(data(client=SITES), "partition.sectors=3", "seed=2")
        found = prepare(Config.from_toml(first.config.to_toml()), data=data(client=SITES))
        assert found.partition == first.partition
        assert found.config == first.config


def test_split_alone_gives_the_rows(tmp_path: Path) -> None:
    first = made(data())
    written(tmp_path, first)
    parts = Manifest(manifest=str(tmp_path)).split(first.split.train.y.numpy(), 99, stream(0))
    assert all(np.array_equal(a, b) for a, b in zip(parts, first.partition.indices, strict=True))
