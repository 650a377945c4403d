"""What every listed scheme promises, whatever its idea."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headwater.errors import ConfigError, DataError
from headwater.partition import PARTITIONS
from headwater.partition.base import Partition
from headwater.rng import stream

Split = Callable[..., list[Any]]
OPTIONS: dict[str, dict[str, Any]] = {  # so that tiny sets can be split too, and by few clients
    "dirichlet-balanced": {"min_size": 0},
    "blocked": {"block": 1},
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
}
UNEQUAL = np.repeat([0, 1, 2, 3], [200, 50, 7, 1])


@pytest.fixture(params=list(PARTITIONS))
def split(request: pytest.FixtureRequest) -> Split:
    scheme = PARTITIONS.load(request.param)(**OPTIONS.get(request.param, {}))

    def run(labels: Any, clients: int, seed: int = 0) -> list[Any]:
        return scheme.split(labels, clients, stream(seed, "partition"))  # type: ignore[no-any-return]

    return run


def every_index_once(parts: list[Any], samples: int) -> bool:
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@pytest.mark.parametrize("clients", [1, 2, 7, 20])
def test_every_index_is_used_once(split: Split, clients: int) -> None:
    parts = split(UNEQUAL, clients)
    assert len(parts) == clients
    assert every_index_once(parts, len(UNEQUAL))


def test_indices_are_sorted_int64(split: Split) -> None:
    for part in split(UNEQUAL, 6):
        assert part.dtype == np.int64
        assert np.array_equal(part, np.sort(part))


def test_one_client_gets_everything(split: Split) -> None:
    assert np.array_equal(split(UNEQUAL, 1)[0], np.arange(len(UNEQUAL)))


def test_more_clients_than_samples_leaves_some_empty(split: Split) -> None:
    parts = split(np.array([0, 1, 1]), 8)
    assert len(parts) == 8
    assert every_index_once(parts, 3)


def test_same_seed_same_split_and_other_seed_another(split: Split) -> None:
    first, again, other = split(UNEQUAL, 5, 1), split(UNEQUAL, 5, 1), split(UNEQUAL, 5, 2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", list(PARTITIONS))
def test_the_split_of_a_seed_is_fixed(name: str) -> None:
    parts = PARTITIONS.load(name)().split(np.tile(np.arange(10), 60), 20, stream(0, "partition"))
    assert Partition(tuple(parts), (0,) * 20).sha256[:16] == FIXED[name]


def test_labels_are_left_alone(split: Split) -> None:
    labels = UNEQUAL.copy()
    split(labels, 5)
    assert np.array_equal(labels, UNEQUAL)


def test_a_class_without_samples_is_no_obstacle(split: Split) -> None:
    assert every_index_once(split(np.array([0, 3, 3, 0, 7, 7]), 2), 6)


def test_small_unsigned_labels_do(split: Split) -> None:
    assert every_index_once(split(UNEQUAL.astype(np.uint8), 3), len(UNEQUAL))


def test_refuses_nobody_and_nothing(split: Split) -> None:
    with pytest.raises(ConfigError, match="clients must be at least 1, got 0"):
        split(UNEQUAL, 0)
    with pytest.raises(DataError, match="at least one sample"):
        split(np.empty(0, np.int64), 3)
    with pytest.raises(DataError, match="whole-number label"):
        split(np.array([0.5, 1.0]), 3)
