"""A class prior by client, sizes alike."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.rng import stream
from headwater.errors import ConfigError
from headwater.partition.base import even, fill
from headwater.partition.client_prior import ClientPrior
from headwater.partition.partition import Partition
from headwater.partition.summary import summarise

LABELS = np.tile(np.arange(10), 600)


def distance(alpha: float, clients: int = 20, seed: int = 0) -> float:
    parts = ClientPrior(alpha=alpha).split(LABELS, clients, stream(seed))
    return summarise(Partition(tuple(parts), (0,) * clients), LABELS, 10).mean()


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=200),
    clients=st.integers(1, 40),
    alpha=st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 1e3, 1e300]),
    seed=st.integers(0, 5),
)
def test_every_sample_once_and_sizes_within_one(labels: list[int], clients: int, alpha: float, seed: int) -> None:
    parts = ClientPrior(alpha=alpha).split(np.array(labels), clients, stream(seed))
    sizes = [len(part) for part in parts]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert max(sizes) - min(sizes) <= 1


def test_large_alpha_comes_near_the_whole() -> None:
    """Each client holds 300 samples; drawing them from equal shares is itself about 0.07 away from those."""
    assert distance(1e6) < 0.1


def test_small_alpha_gives_about_a_class_a_client_while_classes_last() -> None:
    """Of many classes few run out early, so that nearly every client holds one or two."""
    labels = np.tile(np.arange(100), 60)
    parts = ClientPrior(alpha=1e-4).split(labels, 20, stream(0))
    largest = [np.bincount(labels[part]).max() for part in parts]
    # A class has 60 samples and a client 300: where the prior's only class has run out, the rest is spread evenly.
    assert np.median(largest) >= 50
    few = ClientPrior(alpha=1e-4).split(LABELS, 1000, stream(0))
    assert np.mean([len(np.unique(LABELS[part])) == 1 for part in few]) > 0.6


def test_skew_falls_with_alpha() -> None:
    found = [distance(alpha) for alpha in (0.01, 0.1, 1.0, 10.0, 100.0)]
    assert found == sorted(found, reverse=True)


def test_shares_follow_the_prior_while_nothing_runs_out() -> None:
    """A small client beside one that takes the rest: over seeds its shares are as spread as its prior."""
    labels = np.tile(np.arange(2), 5000)
    shares = []
    for seed in range(300):
        parts = fill(labels, np.array([100, 9900]), 1.0, stream(seed))
        shares.append(float(labels[parts[0]].mean()))
    # Dir(1, 1) is uniform on [0, 1], with variance 1/12; drawing 100 samples adds at most E[p(1-p)]/100 = 1/600. The
    # large client empties one class at times, which only narrows the tails.
    assert np.mean(shares) == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / 300))
    assert 0.06 < np.var(shares) < 0.1


def test_a_class_that_ran_out_is_drawn_again() -> None:
    """Nine of ten samples are of class 0, so both clients get class 0 whatever their priors say."""
    labels = np.array([0] * 18 + [1, 1])
    for seed in range(20):
        for part in ClientPrior(alpha=1e-3).split(labels, 2, stream(seed)):
            assert len(part) == 10
            assert (labels[part] == 0).sum() >= 8


def test_even_by_hand() -> None:
    assert even(11, 4).tolist() == [3, 3, 3, 2]
    assert even(2, 4).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("alpha", [0.0, -0.1, float("nan"), float("inf")])
def test_refuses_alpha(alpha: float) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"finite number above 0, got {alpha}")):
        ClientPrior(alpha=alpha)


def test_sizes_are_log_normal_if_asked() -> None:
    """Every sample once, nobody empty; the logarithms of sizes have about this deviation; 0 is the equal split."""
    labels = np.arange(100_000) % 10
    parts = ClientPrior(alpha=1.0, sigma=0.5).split(labels, 400, stream(3))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(100_000))
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() >= 1
    assert abs(np.log(sizes).std() - 0.5) < 0.05
    same = ClientPrior(alpha=1.0, sigma=0.0).split(LABELS, 7, stream(1))
    assert all(
        np.array_equal(a, b) for a, b in zip(same, ClientPrior(alpha=1.0).split(LABELS, 7, stream(1)), strict=True)
    )
    few = ClientPrior(sigma=3.0).split(np.arange(12) % 3, 10, stream(0))
    assert [len(part) >= 1 for part in few] == [True] * 10
