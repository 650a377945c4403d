"""What every listed scheme promises, whatever its idea; one that says `SHARED` is excused from giving every sample to
one client, and has checks of its own. Schemes that are given a split are given one that somebody else drew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.core.rng import stream
from headwater.data.owners import Owners
from headwater.errors import ConfigError, DataError
from headwater.partition import PARTITIONS
from headwater.partition.base import Partition
from headwater.partition.given import Manifest, Natural
from headwater.partition.iid import Iid

Split = Callable[..., list[Any]]
OPTIONS: dict[str, dict[str, Any]] = {  # so that tiny sets can be split too, and by few clients
    "dirichlet-balanced": {"min_size": 0},
    "blocked": {"block": 1},
    "quantity": {"min_size": 0},
    "drawn": {"size": 2},
}
# Of 600 samples of ten classes over 20 clients: a published split must not change with the version or the machine.
FIXED = {
    "iid": "34c201e4fac354a3",
    "dirichlet": "c97ce38b27cb2374",
    "dirichlet-balanced": "3a0c66a251129d8a",
    "client-prior": "3a3402e815720292",
    "blocked": "3916ba63195dd6c7",
    "two-level": "3a3402e815720292",  # all clients as one sector is the scheme before
    "shards": "304116bc3a47ec74",
    "quantity": "3f82e09e9d823605",
    "drawn": "1733371ba439ab9a",  # of the rule; what it draws is fixed in its own tests
    "natural": "34c201e4fac354a3",  # given the first one
    "manifest": "34c201e4fac354a3",
}
UNEQUAL = np.repeat([0, 1, 2, 3], [200, 50, 7, 1])


SHARED = [name for name in PARTITIONS if getattr(PARTITIONS.load(name), "SHARED", False)]
SPLITS = [name for name in PARTITIONS if name not in SHARED]
GIVEN = [name for name in PARTITIONS if hasattr(PARTITIONS.load(name), "given")]


@pytest.fixture(params=list(PARTITIONS))
def split(request: pytest.FixtureRequest, tmp_path: Path) -> Split:
    return by_name(request.param, tmp_path)


@pytest.fixture(params=SPLITS)
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Split:
    """Of those that give every sample to one client."""
    return by_name(request.param, tmp_path)


@pytest.fixture(params=[name for name in PARTITIONS if name not in GIVEN])
def drawing(request: pytest.FixtureRequest, tmp_path: Path) -> Split:
    """Of those that draw their split themselves."""
    return by_name(request.param, tmp_path)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Split:
    """Of those in which a sample may be at several clients, or at none."""
    return by_name(request.param, tmp_path)


def by_name(name: str, folder: Path, options: dict[str, Any] | None = None) -> Split:
    options = OPTIONS.get(name, {}) if options is None else options

    def run(labels: Any, clients: int, seed: int = 0) -> Any:
        drawn = stream(seed, "partition")
        if name == "natural":
            rows = np.empty(len(labels), np.int64)
            for client, part in enumerate(Iid().split(labels, clients, drawn)):
                rows[part] = client
            return Natural().given(labels, Owners(rows, tuple(map(str, range(clients))))).indices
        if name == "manifest":
            made = Partition(Iid().split(labels, clients, drawn), (0,) * clients)
            (folder / "partition.json").write_text(json.dumps(made.told(labels, int(labels.max()) + 1, ())))
            return Manifest(manifest=str(folder)).given(labels, None).indices
        return PARTITIONS.load(name)(**options).split(labels, clients, drawn)

    return run


def every_index_once(parts: list[Any], samples: int) -> bool:
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@pytest.mark.parametrize("clients", [1, 2, 7, 20])
def test_every_index_is_used_once(whole: Split, clients: int) -> None:
    parts = whole(UNEQUAL, clients)
    assert len(parts) == clients
    assert every_index_once(parts, len(UNEQUAL))


def test_indices_are_sorted_int64(split: Split) -> None:
    for part in split(UNEQUAL, 6):
        assert part.dtype == np.int64
        assert np.array_equal(part, np.sort(part))


def test_one_client_gets_everything(whole: Split) -> None:
    assert np.array_equal(whole(UNEQUAL, 1)[0], np.arange(len(UNEQUAL)))


def test_more_clients_than_samples_leaves_some_empty(whole: Split) -> None:
    parts = whole(np.array([0, 1, 1]), 8)
    assert len(parts) == 8
    assert every_index_once(parts, 3)


def test_same_seed_same_split_and_other_seed_another(split: Split) -> None:
    first, again, other = split(UNEQUAL, 5, 1), split(UNEQUAL, 5, 1), split(UNEQUAL, 5, 2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", list(PARTITIONS))
def test_the_split_of_a_seed_is_fixed(name: str, tmp_path: Path) -> None:
    parts = by_name(name, tmp_path, {})(np.tile(np.arange(10), 60), 20)
    assert Partition(parts, (0,) * 20).sha256[:16] == FIXED[name]


def test_labels_are_left_alone(split: Split) -> None:
    labels = UNEQUAL.copy()
    split(labels, 5)
    assert np.array_equal(labels, UNEQUAL)


def test_a_class_without_samples_is_no_obstacle(whole: Split) -> None:
    assert every_index_once(whole(np.array([0, 3, 3, 0, 7, 7]), 2), 6)


def test_one_class_is_no_obstacle(whole: Split) -> None:
    assert every_index_once(whole(np.full(40, 3), 5), 40)


def test_a_single_sample_goes_to_one(whole: Split) -> None:
    assert sorted(len(part) for part in whole(np.array([2]), 3)) == [0, 0, 1]


def test_small_unsigned_labels_do(whole: Split) -> None:
    assert every_index_once(whole(UNEQUAL.astype(np.uint8), 3), len(UNEQUAL))


def test_refuses_nobody_and_nothing(drawing: Split) -> None:
    with pytest.raises(ConfigError, match="clients must be at least 1, got 0"):
        drawing(UNEQUAL, 0)
    with pytest.raises(DataError, match="at least one sample"):
        drawing(np.empty(0, np.int64), 3)
    with pytest.raises(DataError, match="whole-number label"):
        drawing(np.array([0.5, 1.0]), 3)


class TestShared:
    """What a scheme promises that is excused from the rule of one client a sample."""

    @pytest.mark.parametrize("clients", [1, 2, 7, 20])
    def test_no_client_holds_a_sample_twice(self, shared: Split, clients: int) -> None:
        parts = shared(UNEQUAL, clients)
        assert len(parts) == clients
        for part in parts:
            assert len(np.unique(part)) == len(part) > 0
            assert 0 <= part[0] <= part[-1] < len(UNEQUAL)

    def test_a_clients_draw_does_not_depend_on_the_number_of_clients(self, shared: Split) -> None:
        few, many = shared(UNEQUAL, 3), shared(UNEQUAL, 300_000)
        assert all(np.array_equal(few[at], many[at]) for at in range(3))

    def test_labels_of_any_kind_of_number_give_the_same(self, shared: Split) -> None:
        small, large = shared(UNEQUAL.astype(np.uint8), 3), shared(UNEQUAL, 3)
        assert all(np.array_equal(a, b) for a, b in zip(small, large, strict=True))
        assert Partition(small, (0, 0, 0)) == Partition(large, (0, 0, 0))

    def test_a_partition_takes_the_rule_and_not_the_lists(self, shared: Split) -> None:
        """As lists, samples that several clients hold are a mistake."""
        parts = shared(UNEQUAL, 200)
        assert Partition(parts, (0,) * 200).rule is not None
        with pytest.raises(DataError, match="one client only"):
            Partition(tuple(parts), (0,) * 200)
