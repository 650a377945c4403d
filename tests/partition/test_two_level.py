"""Skew by sector and by client, in the three settings that have names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import Config
from headwater.core.rng import stream
from headwater.data.base import Data
from headwater.data.split import carve
from headwater.errors import ConfigError
from headwater.partition.client_prior import ClientPrior
from headwater.partition.divide import divide
from headwater.partition.partition import Partition
from headwater.partition.summary import PartitionSummary, summarise
from headwater.partition.two_level import TwoLevel

LABELS = np.tile(np.arange(10), 1000)
BLOCKS = tuple(client // 10 for client in range(100))


def summary(seed: int = 0, **options: Any) -> PartitionSummary:
    parts = TwoLevel(**options).split_tree(LABELS, BLOCKS, stream(seed))
    return summarise(Partition(tuple(parts), BLOCKS), LABELS, 10)


def inside(found: PartitionSummary) -> float:
    """The mean label distance of clients from their own sector."""
    counts = found.counts.reshape(10, 10, 10)
    own = counts.sum(axis=1, keepdims=True) / counts.sum(axis=(1, 2), keepdims=True)
    return float(np.abs(counts / counts.sum(axis=2, keepdims=True) - own).sum(axis=2).mean() / 2)


@settings(max_examples=40)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=150),
    sector_of=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    setting=st.sampled_from(["both", "clients", "sectors"]),
    seed=st.integers(0, 3),
)
def test_every_sample_once_and_sizes_within_one(
    labels: list[int], sector_of: list[int], setting: Any, seed: int
) -> None:
    parts = TwoLevel(setting=setting).split_tree(np.array(labels), tuple(sector_of), stream(seed))
    sizes = [len(part) for part in parts]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert max(sizes) - min(sizes) <= 1


class TestSettings:
    """100 clients of 100 samples in ten sectors. Drawing a client's 100 samples from its shares moves those by about
    0.12 at ten classes and drawing a sector's 1000 by about 0.04, whatever the setting."""

    def test_both(self) -> None:
        found = summary(setting="both")
        assert found.mean("sectors") > 0.5
        assert found.mean("clients") > found.mean("sectors") + 0.05
        assert inside(found) > 0.3

    def test_clients_only(self) -> None:
        """A sector's shares are the mean of ten priors: its distance is about √10 below a client's."""
        found = summary(setting="clients")
        assert found.mean("clients") > 0.55
        assert found.mean("sectors") < 0.5 * found.mean("clients")
        assert inside(found) > 0.5

    def test_sectors_only(self) -> None:
        found = summary(setting="sectors")
        assert found.mean("sectors") > 0.5
        assert inside(found) < 0.12
        assert found.mean("clients") == pytest.approx(found.mean("sectors"), abs=0.05)

    def test_no_skew_at_all(self) -> None:
        found = summary(setting="both", alpha=1e6)
        assert found.mean("sectors") < 0.06
        assert found.mean("clients") < 0.16

    def test_the_inner_alpha_counts_inside_only(self) -> None:
        """Equal streams deal sectors alike, whatever happens inside them."""
        apart, alike = summary(alpha=0.1, alpha_client=0.1), summary(alpha=0.1, alpha_client=1e4)
        assert apart.mean("sectors") == alike.mean("sectors")
        assert inside(alike) < 0.12 < 0.3 < inside(apart)
        assert summary(alpha=0.1).mean() == apart.mean()
        assert summary(setting="sectors").mean() == alike.mean()

    def test_clients_only_is_the_flat_scheme(self) -> None:
        flat = ClientPrior(alpha=0.3).split(LABELS, 100, stream(1))
        mine = TwoLevel(setting="clients", alpha=0.3).split_tree(LABELS, BLOCKS, stream(1))
        assert all(np.array_equal(a, b) for a, b in zip(flat, mine, strict=True))


def test_what_corrections_have_to_make_up_for_vanishes_where_it_should() -> None:
    """Linear loss y·w by class: a client's gradient is its label shares. MTGC's client correction is the sector's mean
    gradient less the client's, its sector correction the overall mean less the sector's: each vanishes, but for the
    chance of the draw, in the setting where that level is alike."""

    def corrections(setting: str) -> tuple[float, float]:
        counts = summary(setting=setting).counts.reshape(10, 10, 10)
        gradient = counts / counts.sum(axis=2, keepdims=True)
        z = gradient.mean(axis=1, keepdims=True) - gradient
        y = gradient.mean(axis=(0, 1)) - gradient.mean(axis=1)
        return float(np.square(z).sum(axis=2).mean()), float(np.square(y).sum(axis=1).mean())

    (z_both, y_both), (z_clients, y_clients), (z_sectors, y_sectors) = map(corrections, ("both", "clients", "sectors"))
    assert z_sectors < 0.05 * z_both
    assert y_clients < 0.2 * y_both
    # Where a level is unlike, its correction stays of the size that it has when both are.
    assert z_clients > 0.8 * z_both
    assert y_sectors == pytest.approx(y_both)  # sectors are dealt first, from the same stream


def test_a_sector_with_one_class_gives_its_clients_that_class() -> None:
    """At a minute alpha each of two sectors takes a class whole, so the inner prior has nothing else to give."""
    labels = np.repeat([0, 1], 50)
    apart = 0
    for seed in range(10):
        parts = TwoLevel(alpha=1e-6, alpha_client=1e6).split_tree(labels, (0, 1, 0, 1), stream(seed))
        held = [set(labels[part].tolist()) for part in parts]
        sectors = [held[0] | held[2], held[1] | held[3]]
        for client, found in enumerate(held):
            assert found <= sectors[client % 2]
        apart += all(len(sector) == 1 for sector in sectors)
    assert apart > 0


class TestDivide:
    def config(self, *sets: str) -> Config:
        common = ["partition.scheme=two-level", "partition.clients=12", "partition.sectors=3", "partition.alpha=0.05"]
        return Config.load(None, [*common, *sets])

    def split(self) -> Any:
        x = np.zeros((1200, 1), np.float32)
        return carve(Data(x, np.arange(1200) % 4, x[:4], np.arange(4)), validation=0, reference_size=0)

    def test_sectors_come_first(self) -> None:
        """The samples of a sector are what the scheme gave to the clients that were put into it."""
        split = self.split()
        for how in ("blocks", "random", "[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]"):
            found = divide(self.config(f"partition.assign={how}"), split)
            again = TwoLevel(alpha=0.05).split_tree(split.train.y.numpy(), found.sectors, stream(0, "partition"))
            assert found == Partition(tuple(again), found.sectors)
        assert found.sectors == (0, 1, 2) * 4

    def test_the_seed_decides_random_sectors(self) -> None:
        split = self.split()
        drawn = {divide(self.config(f"seed={seed}"), split).sectors for seed in range(4)}
        assert len(drawn) > 1
        assert all(set(sectors) == {0, 1, 2} for sectors in drawn)

    def test_balanced_sectors_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"'balanced' looks at what clients hold, but 'two-level' .*'blocks'"):
            self.config("partition.assign=balanced")


class TestRefuses:
    @pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": -1.0}, {"alpha_client": 0.0}])
    def test_alphas(self, options: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match=rf"partition\.{next(iter(options))} must be a finite number above 0"):
            TwoLevel(**options)  # type: ignore[arg-type]

    def test_an_inner_alpha_where_it_is_not_used(self) -> None:
        for setting in ("clients", "sectors"):
            with pytest.raises(ConfigError, match=f"no effect with setting = '{setting}'"):
                Config.load(
                    None,
                    ["partition.scheme=two-level", f"partition.setting={setting}", "partition.alpha_client=1"],
                )

    def test_another_setting(self) -> None:
        with pytest.raises(ConfigError, match="one of 'both', 'clients', 'sectors', got 'client'; did you mean"):
            Config.load(None, ["partition.scheme=two-level", "partition.setting=client"])
