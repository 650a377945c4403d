"""A population: clients that draw from one pool when they are asked for."""

from __future__ import annotations

import hashlib
import json
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import Config
from headwater.core.rng import stream
from headwater.errors import ConfigError, DataError
from headwater.partition.drawn import DrawnClients
from headwater.partition.partition import SHOWN, Partition, pack, unpack

LABELS = np.tile(np.arange(10), 100)
MILLION = 1_000_000


def of(clients: int, seed: int = 3, **options: Any) -> Any:
    return DrawnClients(**options).population(LABELS, clients, seed)


@pytest.mark.parametrize("alpha", [None, 0.1, 10.0])
class TestEveryMix:
    def test_each_client_holds_so_many_different_samples(self, alpha: float | None) -> None:
        for client in of(40, size=30, alpha=alpha):
            assert len(client) == len(np.unique(client)) == 30
            assert 0 <= client[0] <= client[-1] < len(LABELS)

    def test_a_client_holds_the_same_whoever_else_there_is(self, alpha: float | None) -> None:
        few, many = of(5, alpha=alpha), of(MILLION, alpha=alpha)
        assert all(np.array_equal(few[at], many[at]) for at in range(5))
        assert not np.array_equal(many[0], many[MILLION - 1])
        assert np.array_equal(many[-1], many[MILLION - 1])

    def test_clients_may_share_samples(self, alpha: float | None) -> None:
        together = np.concatenate(list(of(40, alpha=alpha)))
        assert len(np.unique(together)) < len(together)

    def test_it_survives_a_journey_in_little_room(self, alpha: float | None) -> None:
        made = of(MILLION, alpha=alpha)
        expected = made[77_777]
        packed = pickle.dumps(made)
        assert len(packed) < 3000  # the labels are nearly all of it
        assert np.array_equal(pickle.loads(packed)[77_777], expected)

    def test_nobody_changes_it_for_others(self, alpha: float | None) -> None:
        with pytest.raises(ValueError, match="read-only"):
            of(3, alpha=alpha)[0][0] = 5


@pytest.mark.parametrize(("alpha", "expected"), [(None, "ed1cf30a313cd197"), (0.1, "b124f949bcaac337")])
def test_what_a_seed_draws_is_fixed(alpha: float | None, expected: str) -> None:
    together = np.concatenate(list(of(20, alpha=alpha)))
    assert hashlib.sha256(together.astype("<i8").tobytes()).hexdigest()[:16] == expected


def label_shares(alpha: float | None, clients: int = 400, size: int = 60) -> Any:
    return np.stack([np.bincount(LABELS[c], minlength=10) / size for c in of(clients, size=size, alpha=alpha)])


def test_the_label_mix_follows_alpha() -> None:
    """A symmetric Dirichlet's shares have variance m(1 - m)/(10·alpha + 1) with mean m = 1/10, and drawing 60 samples
    by them adds (m(1 - m) - that)/60; drawn from 1 000 without replacement, a little less where shares are equal."""
    spread = 0.1 * 0.9
    for alpha in (0.5, 2.0):
        shares = label_shares(alpha)
        inner = spread / (10 * alpha + 1)
        assert shares.mean(axis=0) == pytest.approx(np.full(10, 0.1), abs=0.02)
        assert shares.var() == pytest.approx(inner + (spread - inner) / 60, rel=0.1)
    assert label_shares(None).var() == pytest.approx(spread / 60 * (1000 - 60) / 999, rel=0.1)


def test_uniformly_every_sample_is_as_likely() -> None:
    """20 000 clients of 50 out of 1 000: a sample is held 1 000 times, give or take five standard deviations."""
    seen = np.bincount(np.concatenate(list(of(20_000))), minlength=1000)
    assert np.abs(seen - 1000).max() < 5 * np.sqrt(1000 * 0.95)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 20), st.sampled_from([1e-3, 0.1, 5.0]))
@settings(max_examples=80)
def test_what_a_small_class_cannot_give_comes_from_the_others(counts: list[int], size: int, alpha: float) -> None:
    labels = np.repeat(np.arange(len(counts)) * 3, counts)  # and some classes have no sample
    size = min(size, len(labels))
    for client in DrawnClients(size=size, alpha=alpha).population(labels, 4, 0):
        assert len(np.unique(client)) == size


def test_asking_for_more_than_there_is() -> None:
    with pytest.raises(ConfigError, match=r"partition\.size is 1001, but there are only 1000 samples"):
        of(2, size=1001)
    assert np.array_equal(of(2, size=1000)[1], np.arange(1000))


@pytest.mark.parametrize(
    ("options", "told"), [({"size": 0}, "size"), ({"alpha": 0.0}, "alpha must be a finite number above 0")]
)
def test_options_out_of_range_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Config(partition={"scheme": "drawn", **options})


def test_a_million_clients_cost_nothing_until_asked() -> None:
    tracemalloc.start()
    try:
        made = Partition(of(MILLION), (0,) * MILLION)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert sum(len(made.indices[at]) for at in range(0, MILLION, 20_000)) == 50 * 50
        assert made.counts(LABELS, 10, 20).shape == (20, 10)
        assert tracemalloc.get_traced_memory()[1] - before < 1e6
    finally:
        tracemalloc.stop()


class TestManifest:
    MADE = Partition(of(2500, alpha=0.3, size=20), tuple(np.arange(2500) % 3))

    def test_it_holds_the_rule_and_gives_the_partition_back(self) -> None:
        manifest = json.loads(json.dumps(self.MADE.manifest()))
        assert "indices" not in manifest
        assert len(json.dumps(manifest)) < 2000
        again = Partition.from_manifest(manifest, LABELS)
        assert again == self.MADE
        assert again.sectors == self.MADE.sectors
        assert np.array_equal(again.indices[1234], self.MADE.indices[1234])

    def test_the_hash_is_over_the_rule_and_the_sectors(self) -> None:
        others = [
            Partition(of(2500, alpha=0.4, size=20), self.MADE.sectors),
            Partition(of(2500, alpha=0.3, size=21), self.MADE.sectors),
            Partition(of(2500, seed=4, alpha=0.3, size=20), self.MADE.sectors),
            Partition(of(2500, alpha=0.3, size=20), tuple(np.arange(2500) % 2)),
            Partition(of(2499, alpha=0.3, size=20), self.MADE.sectors[:2499]),
            Partition(DrawnClients(alpha=0.3, size=20).population(LABELS[::-1], 2500, 3), self.MADE.sectors),
        ]
        assert len({self.MADE.sha256, *(other.sha256 for other in others)}) == 1 + len(others)

    def test_counts_of_the_first_clients_and_a_word_of_how_many(self) -> None:
        told = self.MADE.described(LABELS, 10, ["x"] * 10)
        assert len(told["counts"]) == SHOWN
        assert told["counted"] == {"first": SHOWN, "of": 2500}
        assert told["counts"][7] == np.bincount(LABELS[self.MADE.indices[7]], minlength=10).tolist()
        few = Partition(of(30), (0,) * 30).described(LABELS, 10, ["x"] * 10)
        assert (len(few["counts"]), "counted" in few) == (30, False)

    def test_what_does_not_fit_is_refused(self) -> None:
        manifest = self.MADE.manifest()
        with pytest.raises(DataError, match="give the labels"):
            Partition.from_manifest(manifest)
        with pytest.raises(DataError, match="other labels"):
            Partition.from_manifest(manifest, LABELS[::-1])
        with pytest.raises(DataError, match="was changed"):
            Partition.from_manifest(manifest | {"sectors": pack((0,) * 2500)}, LABELS)
        with pytest.raises(DataError, match="cannot be followed"):
            Partition.from_manifest(manifest | {"rule": {"scheme": "drawn"}}, LABELS)
        for sectors in ("<u1:!", "<u1:AAAA", "odd:", "<u1"):
            with pytest.raises(DataError, match="does not hold lists of whole numbers"):
                Partition.from_manifest(manifest | {"sectors": sectors}, LABELS)


@pytest.mark.parametrize("sectors", [2, 300])
def test_sectors_of_very_many_are_packed(sectors: int) -> None:
    many = tuple(stream(0).integers(sectors, size=5000).tolist())
    packed = pack(many)
    assert isinstance(packed, str)
    assert len(packed) < 3 * len(many)
    assert unpack(packed) == many
    assert pack(many[:SHOWN]) == list(many[:SHOWN])


class TestSectors:
    def test_balancing_very_many_is_refused(self) -> None:
        section = {"scheme": "drawn", "assign": "balanced", "sectors": 2}
        Config(partition={**section, "clients": 10_000})
        with pytest.raises(ConfigError, match="which takes too long for 10001 drawn clients"):
            Config(partition={**section, "clients": 10_001})
        Config(partition={**section, "clients": 10_001, "scheme": "iid"})
