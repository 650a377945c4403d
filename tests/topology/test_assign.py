"""Clients to sectors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from headwater.errors import ConfigError
from headwater.rng import stream
from headwater.topology.assign import WAYS, assign

EVEN = np.full((12, 3), 5)


def skewed(clients: int, classes: int, seed: int) -> Any:
    return stream(seed).multinomial(50, np.full(classes, 1 / classes), size=clients) * stream(seed, 1).integers(
        0, 20, (clients, classes)
    )


def distance(counts: Any, sectors: tuple[int, ...]) -> float:
    """Size-weighted total variation of the sectors from the whole."""
    whole = counts.sum(axis=0) / counts.sum()
    total = 0.0
    for sector in set(sectors):
        held = counts[np.array(sectors) == sector].sum(axis=0)
        total += float(np.abs(held - held.sum() * whole).sum() / 2)
    return total / float(counts.sum())


@pytest.mark.parametrize("how", WAYS)
class TestEveryWay:
    @pytest.mark.parametrize("sectors", [1, 2, 5, 12])
    def test_no_sector_is_empty(self, how: str, sectors: int) -> None:
        found = assign(how, EVEN, sectors, stream(0))
        assert len(found) == 12
        assert set(found) == set(range(sectors))

    def test_same_seed_same_sectors(self, how: str) -> None:
        assert assign(how, EVEN, 3, stream(4)) == assign(how, EVEN, 3, stream(4))

    def test_more_sectors_than_clients_are_refused(self, how: str) -> None:
        with pytest.raises(ConfigError, match="sectors is 13, but there are only 12 clients"):
            assign(how, EVEN, 13, stream(0))

    def test_no_sectors_are_refused(self, how: str) -> None:
        with pytest.raises(ConfigError, match="at least 1, got 0"):
            assign(how, EVEN, 0, stream(0))


class TestRandom:
    def test_seeds_differ(self) -> None:
        assert len({assign("random", EVEN, 3, stream(seed)) for seed in range(5)}) > 1

    def test_each_client_is_anywhere_equally_often(self) -> None:
        """The count of 600 fair draws over two sectors lies within four standard deviations of 300."""
        seen = Counter(assign("random", EVEN, 2, stream(seed))[0] for seed in range(600))
        assert abs(seen[0] - 300) < 4 * 600**0.5 / 2

    @pytest.mark.parametrize("how", ["random", "balanced"])
    @pytest.mark.parametrize("seed", range(8))
    def test_every_sector_gets_a_client_with_data_if_possible(self, how: str, seed: int) -> None:
        counts = np.zeros((12, 2), np.int64)
        counts[[2, 5, 9]] = [[4, 0], [0, 4], [1, 1]]
        found = assign(how, counts, 3, stream(seed))
        assert {found[client] for client in (2, 5, 9)} == {0, 1, 2}

    @pytest.mark.parametrize("how", ["random", "balanced"])
    def test_too_few_clients_with_data_still_leave_no_sector_empty(self, how: str) -> None:
        counts = np.zeros((6, 2), np.int64)
        counts[3] = [5, 5]
        assert set(assign(how, counts, 4, stream(0))) == {0, 1, 2, 3}

    def test_as_many_sectors_as_clients_is_a_shuffle(self) -> None:
        counts = np.ones((30, 2), np.int64)
        assert sorted(assign("random", counts, 30, stream(1))) == list(range(30))


class TestBalanced:
    def test_by_hand(self) -> None:
        """Two clients hold only class 0, two only class 1: each sector gets one of both."""
        counts = np.array([[10, 0], [10, 0], [0, 10], [0, 10]])
        found = assign("balanced", counts, 2, stream(0))
        assert found[0] != found[1]
        assert found[2] != found[3]

    def test_comes_nearer_to_the_whole_than_chance(self) -> None:
        for seed in range(5):
            counts = skewed(30, 10, seed)
            chance = np.mean([distance(counts, assign("random", counts, 3, stream(s))) for s in range(20)])
            assert distance(counts, assign("balanced", counts, 3, stream(0))) < 0.7 * chance


class TestGiven:
    def test_blocks_are_consecutive_and_equal(self) -> None:
        assert assign("blocks", EVEN, 3, stream(0)) == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
        assert Counter(assign("blocks", EVEN, 5, stream(0))) == {0: 3, 1: 2, 2: 3, 3: 2, 4: 2}

    def test_a_list_is_taken_as_it_is(self) -> None:
        assert assign([1, 0, 1], EVEN[:3], 2, stream(0)) == (1, 0, 1)

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ([0, 1], "lists 2 sectors for 3 clients"),
            ([0, 1, 2], "client 2 in sector 2; with partition.sectors = 2 use 0 to 1"),
            ([0, 1, -1], "in sector -1"),
            ([0, 1, 0.5], "in sector 0.5"),
            ([0, 1, True], "in sector True"),
            ([0, 1, "a"], "in sector 'a'"),
            ([0, 0, 0], "leaves sector 1 without clients"),
        ],
    )
    def test_a_wrong_list_is_refused(self, given: list[Any], sentence: str) -> None:
        with pytest.raises(ConfigError, match=sentence):
            assign(given, EVEN[:3], 2, stream(0))

    def test_an_unknown_word_gets_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match="does not know 'balance'; did you mean 'balanced'"):
            assign("balance", EVEN, 2, stream(0))
