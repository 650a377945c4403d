"""Unequal amounts of alike data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.rng import stream
from headwater.errors import ConfigError
from headwater.partition.iid import Iid
from headwater.partition.quantity import Quantity

LABELS = np.tile(np.arange(10), 600)


@settings(max_examples=60)
@given(
    samples=st.integers(1, 300),
    clients=st.integers(1, 30),
    alpha=st.sampled_from([1e-300, 1e-3, 0.5, 1e3, 1e300]),
    least=st.integers(0, 5),
    seed=st.integers(0, 5),
)
def test_every_sample_once_and_nobody_below_the_smallest_size(
    samples: int, clients: int, alpha: float, least: int, seed: int
) -> None:
    least = min(least, samples // clients)
    parts = Quantity(alpha=alpha, min_size=least).split(np.arange(samples) % 3, clients, stream(seed))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    assert min(len(part) for part in parts) >= least


def test_a_huge_alpha_is_the_even_split() -> None:
    """The samples are shuffled first, so that equal shares cut them where the other scheme does."""
    for clients in (1, 7, 20):
        mine = Quantity(alpha=1e300).split(LABELS, clients, stream(3))
        assert all(np.array_equal(a, b) for a, b in zip(mine, Iid().split(LABELS, clients, stream(3)), strict=True))


def test_a_minute_alpha_gives_one_client_all_but_the_smallest_size() -> None:
    sizes = sorted(len(part) for part in Quantity(alpha=1e-6, min_size=5).split(LABELS, 20, stream(0)))
    assert sizes == [5] * 19 + [6000 - 95]


def test_sizes_follow_the_dirichlet_distribution() -> None:
    """Over draws a share has mean 1/N and variance (1/N)(1 - 1/N)/(N·alpha + 1)."""
    for alpha in (0.2, 2.0):
        scheme = Quantity(alpha=alpha, min_size=0)
        shares = np.array([[len(p) / 6000 for p in scheme.split(LABELS, 5, stream(seed))] for seed in range(400)])
        assert shares.mean(axis=0) == pytest.approx(np.full(5, 0.2), abs=0.06)
        assert shares.var() == pytest.approx(0.2 * 0.8 / (5 * alpha + 1), rel=0.15)


def test_labels_are_alike_whatever_the_sizes() -> None:
    """Drawn without regard to labels: a share of a class is within four standard deviations of a tenth."""
    for seed in range(3):
        for part in Quantity(alpha=0.3, min_size=20).split(LABELS, 12, stream(seed)):
            shares = np.bincount(LABELS[part], minlength=10) / len(part)
            assert np.abs(shares - 0.1).max() < 4.5 * np.sqrt(0.09 / len(part))


class TestRefuses:
    def test_a_smallest_size_that_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match=r"99 samples cannot give 10 clients 10 each; .*min_size of at most 9"):
            Quantity(min_size=10).split(LABELS[:99], 10, stream(0))
        with pytest.raises(ConfigError, match="3 samples cannot give 8 clients 1 each"):
            Quantity().split(LABELS[:3], 8, stream(0))

    def test_options(self) -> None:
        with pytest.raises(ConfigError, match="0 or more samples per client, got -1"):
            Quantity(min_size=-1)
        with pytest.raises(ConfigError, match="finite number above 0, got 0"):
            Quantity(alpha=0.0)
