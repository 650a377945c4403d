"""Label distances, and the picture of a partition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headwater.core.rng import stream
from headwater.errors import DataError
from headwater.partition.dirichlet import Dirichlet
from headwater.partition.partition import Partition
from headwater.partition.summary import jensen_shannon, summarise, total_variation

LABELS = np.array([0, 0, 1, 1])
APART = Partition((np.array([0, 1]), np.array([2, 3]), np.empty(0, np.int64)), (0, 1, 1))


def test_distances_by_hand() -> None:
    """Shares (1, 0) against (½, ½): half of ½ + ½; the divergence is ½·log2(4/3) + ½·(½·log2(2/3) + ½·log2(2))."""
    p, q = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert total_variation(p, q) == 0.5
    divergence = 0.5 * math.log2(4 / 3) + 0.5 * (0.5 * math.log2(2 / 3) + 0.5)
    assert jensen_shannon(p, q) == pytest.approx(math.sqrt(divergence))


def test_distances_of_disjoint_and_of_equal_shares() -> None:
    p, q = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert (total_variation(p, q), jensen_shannon(p, q)) == (1.0, 1.0)
    assert (total_variation(p, p), jensen_shannon(p, p)) == (0.0, 0.0)


def test_summary_by_hand() -> None:
    found = summarise(APART, LABELS, 2)
    assert [row.total_variation for row in found.clients] == [0.5, 0.5, None]
    assert [row.size for row in found.sectors] == [2, 2]
    assert [row.classes for row in found.clients] == [1, 1, 0]
    assert found.empty == 1
    assert found.mean() == 0.5


def test_one_sector_is_the_whole() -> None:
    found = summarise(Partition(APART.indices, (0, 0, 0)), LABELS, 2)
    assert found.mean("sectors") == 0
    assert found.mean("sectors", "jensen_shannon") == 0


def test_sectors_are_never_further_away_than_their_clients() -> None:
    """Total variation is convex, so mixing clients cannot raise the weighted mean."""
    labels = np.tile(np.arange(10), 200)
    for seed in range(5):
        parts = Dirichlet(alpha=0.2).split(labels, 12, stream(seed))
        found = summarise(Partition(tuple(parts), tuple(client % 3 for client in range(12))), labels, 10)
        assert found.mean("sectors") <= found.mean("clients")


def test_refuses_a_partition_of_nothing() -> None:
    with pytest.raises(DataError, match="no samples at all"):
        summarise(Partition((np.empty(0, np.int64),), (0,)), LABELS, 2)
