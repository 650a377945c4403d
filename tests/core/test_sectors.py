"""Clients to sectors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from headwater.core.rng import stream
from headwater.core.sectors import WAYS, _deal, assign
from headwater.errors import ConfigError
from headwater.partition.client_prior import ClientPrior
from headwater.partition.dirichlet import Dirichlet
from headwater.partition.shards import Shards

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


def uneven(counts: Any, sectors: tuple[int, ...]) -> float:
    """How far the size of a sector is from the mean at most, as a share of the mean."""
    sizes = np.bincount(sectors, weights=counts.sum(axis=1))
    return float(np.abs(sizes / sizes.mean() - 1).max())


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

    def test_a_single_client_is_called_one(self, how: str) -> None:
        with pytest.raises(ConfigError, match=r"there is only 1 client .* at most 1 sector or"):
            assign(how, EVEN[:1], 2, stream(0))

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

    @pytest.mark.parametrize("scheme", [Dirichlet(alpha=0.1), ClientPrior(alpha=0.1), Shards()])
    @pytest.mark.parametrize("sectors", [2, 4])
    def test_it_beats_the_mean_of_chance_in_every_draw(self, scheme: Any, sectors: int) -> None:
        """Twenty splits of 20 clients, against ten random assignments of each; sizes come out more alike too."""
        labels, ratios, sizes = np.tile(np.arange(10), 200), [], []
        for seed in range(20):
            counts = np.stack([np.bincount(labels[p], minlength=10) for p in scheme.split(labels, 20, stream(seed))])
            chance = [assign("random", counts, sectors, stream(seed, draw)) for draw in range(10)]
            found = assign("balanced", counts, sectors, stream(seed))
            ratios.append(distance(counts, found) / np.mean([distance(counts, other) for other in chance]))
            sizes.append((uneven(counts, found), np.mean([uneven(counts, other) for other in chance])))
        assert max(ratios) < 1
        assert np.mean(ratios) < 0.85
        assert np.less(*np.mean(sizes, axis=0))

    def test_exchanges_lower_the_distance_and_keep_sizes(self) -> None:
        """Against the mere dealing out: never further away, at times much nearer; the least even sector is not left
        less even, but for a twentieth."""
        gained = []
        for seed in range(20):
            counts = skewed(24, 8, seed)
            dealt, found = tuple(_deal(counts, 4).tolist()), assign("balanced", counts, 4, stream(0))
            gained.append(distance(counts, found) / distance(counts, dealt))
            assert uneven(counts, found) <= max(uneven(counts, dealt), 0.05) + 1e-9
        assert max(gained) <= 1
        assert np.mean(gained) < 0.7

    def test_an_exchange_by_hand(self) -> None:
        """Dealt out by size, the sectors hold (5, 3) and (2, 4) of the two classes; an exchange makes that (3, 3) and
        (4, 4), which is as far from even sizes and has the label shares of the whole."""
        counts = np.array([[0, 3], [2, 1], [3, 0], [2, 3]])
        assert _deal(counts, 2).tolist() == [1, 1, 0, 0]
        assert assign("balanced", counts, 2, stream(0)) == (0, 1, 0, 1)

    def test_no_single_move_or_exchange_is_left_that_helps(self) -> None:
        for seed in range(5):
            counts = skewed(10, 5, seed)
            found = assign("balanced", counts, 3, stream(0))
            limit = max(uneven(counts, tuple(_deal(counts, 3).tolist())), 0.05) + 1e-9
            for one in range(10):
                for other in range(10):
                    moved = list(found)
                    moved[one], moved[other] = found[other], found[one]
                    if other < 3:
                        moved = list(found)
                        moved[one] = other
                    if set(moved) == {0, 1, 2} and uneven(counts, tuple(moved)) <= limit:
                        assert distance(counts, tuple(moved)) >= distance(counts, found) - 1e-12

    def test_nothing_is_drawn(self) -> None:
        counts = skewed(30, 10, 3)
        assert len({assign("balanced", counts, 5, stream(seed)) for seed in range(4)}) == 1

    def test_what_it_finds_is_fixed(self) -> None:
        """In whole numbers, so that no rounding decides: the same on every platform."""
        counts = np.array([[client * label % 7 for label in range(4)] for client in range(12)])
        assert assign("balanced", counts, 3, stream(0)) == (1, 0, 1, 1, 2, 0, 0, 2, 0, 2, 2, 1)

    def test_very_many_are_only_dealt_out(self) -> None:
        counts = skewed(3000, 4, 0)
        assert assign("balanced", counts, 3, stream(0)) == tuple(_deal(counts, 3).tolist())
        assert distance(counts, assign("balanced", counts, 3, stream(0))) < 0.01


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
