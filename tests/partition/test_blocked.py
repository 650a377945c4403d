"""Blocks of clients that share nothing."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.core.rng import stream
from headwater.errors import ConfigError
from headwater.partition.blocked import Blocked
from headwater.partition.partition import Partition
from headwater.partition.summary import summarise

LABELS = np.tile(np.arange(10), 600)


@pytest.mark.parametrize(("clients", "ends"), [(10, [10]), (20, [10, 20]), (25, [10, 20, 25]), (39, [10, 20, 30, 39])])
def test_each_block_has_its_own_chunk(clients: int, ends: list[int]) -> None:
    """A block's samples are a chunk of the shuffled set, in proportion to its clients; the order is drawn first."""
    parts = Blocked().split(LABELS, clients, stream(3))
    order = stream(3).permutation(len(LABELS))
    start = 0
    for end, before in zip(ends, [0, *ends], strict=False):
        stop = len(LABELS) * end // clients
        assert np.array_equal(np.sort(np.concatenate(parts[before:end])), np.sort(order[start:stop]))
        start = stop
    assert start == len(LABELS)


@pytest.mark.parametrize("alpha", [0.05, 1.0])
def test_nobody_has_less_than_half_of_the_mean(alpha: float) -> None:
    for seed in range(3):
        parts = Blocked(alpha=alpha).split(LABELS, 20, stream(seed))
        assert min(len(part) for part in parts) >= 150


def test_blocks_are_draws_of_their_own() -> None:
    """Each ten clients hold about half of every class, and differ from the other ten in who holds what."""
    parts = Blocked(alpha=0.05).split(LABELS, 20, stream(0))
    counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in parts])
    for block in (counts[:10], counts[10:]):
        assert np.all(block.sum(axis=0) > 250)  # 300 of each class on average, at most 3.6 deviations fewer
    assert not np.array_equal(counts[:10] > 100, counts[10:] > 100)


def test_skew_falls_with_alpha() -> None:
    def distance(alpha: float) -> float:
        parts = Blocked(alpha=alpha).split(LABELS, 20, stream(0))
        return summarise(Partition(tuple(parts), (0,) * 20), LABELS, 10).mean()

    found = [distance(alpha) for alpha in (0.05, 0.5, 5.0, 1e6)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.06  # what is left comes from cutting into chunks at random


class TestRefuses:
    def test_fewer_clients_than_a_block(self) -> None:
        with pytest.raises(ConfigError, match=r"blocks of 10, but there are only 9; .* smaller partition\.block"):
            Blocked().split(LABELS, 9, stream(0))

    def test_an_empty_block(self) -> None:
        with pytest.raises(ConfigError, match="at least 1 client, got 0"):
            Blocked(block=0)

    def test_alpha(self) -> None:
        with pytest.raises(ConfigError, match="finite number above 0, got 0"):
            Blocked(alpha=0.0)
