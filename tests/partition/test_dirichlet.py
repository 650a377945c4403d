"""Label skew by client, in its two forms."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headwater.core.rng import stream
from headwater.errors import ConfigError
from headwater.partition import dirichlet_balanced
from headwater.partition.base import whole
from headwater.partition.dirichlet import Dirichlet
from headwater.partition.dirichlet_balanced import DirichletBalanced
from headwater.partition.partition import Partition
from headwater.partition.summary import summarise

LABELS = np.tile(np.arange(10), 600)


def distance(scheme: Dirichlet | DirichletBalanced, clients: int = 20) -> float:
    partition = Partition(tuple(scheme.split(LABELS, clients, stream(0))), (0,) * clients)
    return summarise(partition, LABELS, 10).mean()


class TestDirichlet:
    def test_large_alpha_comes_near_the_whole(self) -> None:
        assert distance(Dirichlet(alpha=1e6)) < 0.01

    def test_small_alpha_leaves_about_one_client_a_class(self) -> None:
        parts = Dirichlet(alpha=1e-3).split(LABELS, 20, stream(0))
        largest = [max(int((LABELS[part] == label).sum()) for part in parts) for label in range(10)]
        assert np.mean(largest) / 600 > 0.97

    def test_skew_falls_with_alpha(self) -> None:
        found = [distance(Dirichlet(alpha=alpha)) for alpha in (0.01, 0.1, 1.0, 10.0, 100.0)]
        assert found == sorted(found, reverse=True)

    @pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e6, 1e300])
    def test_extreme_alphas_still_use_every_index(self, alpha: float) -> None:
        parts = Dirichlet(alpha=alpha).split(LABELS, 7, stream(3))
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))

    def test_dropping_remainders_loses_less_than_a_sample_a_client_and_class(self) -> None:
        kept = Dirichlet(alpha=0.5, drop_remainders=True).split(LABELS, 20, stream(0))
        full = Dirichlet(alpha=0.5).split(LABELS, 20, stream(0))
        together = np.concatenate(kept)
        assert len(np.unique(together)) == len(together)
        assert 0 < len(LABELS) - len(together) < 20 * 10
        for few, all_of_them in zip(kept, full, strict=True):
            assert 0 <= len(all_of_them) - len(few) <= 10

    def test_one_client_loses_nothing_by_dropping_remainders(self) -> None:
        assert len(Dirichlet(alpha=0.3, drop_remainders=True).split(LABELS, 1, stream(0))[0]) == len(LABELS)


class TestBalanced:
    def test_every_client_has_the_smallest_size(self) -> None:
        sizes = [len(part) for part in DirichletBalanced(alpha=0.1, min_size=25).split(LABELS, 20, stream(0))]
        assert min(sizes) >= 25

    def test_sizes_are_more_even_than_without_balance(self) -> None:
        def spread(scheme: Dirichlet | DirichletBalanced) -> float:
            return float(np.mean([np.std([len(p) for p in scheme.split(LABELS, 20, stream(s))]) for s in range(5)]))

        assert spread(DirichletBalanced(alpha=0.1)) < 0.8 * spread(Dirichlet(alpha=0.1))

    def test_a_full_client_gets_no_more(self) -> None:
        """Two classes, two clients: at a minute alpha one takes class 0 whole, so the other must take class 1."""
        labels = np.repeat([0, 1], 50)
        for seed in range(5):
            parts = DirichletBalanced(alpha=1e-6, min_size=1).split(labels, 2, stream(seed))
            assert sorted(labels[part].tolist() for part in parts) == [[0] * 50, [1] * 50]

    def test_refuses_at_once_what_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match=r"99 samples cannot give 10 clients 10 each; .* min_size of at most 9"):
            DirichletBalanced().split(LABELS[:99], 10, stream(0))

    def test_gives_up_with_a_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dirichlet_balanced, "REDRAWS", 50)
        with pytest.raises(ConfigError, match=r"in 50 draws at alpha 0\.001; raise alpha, or lower min_size"):
            DirichletBalanced(alpha=0.001, min_size=60).split(LABELS[:2000], 30, stream(0))


class TestWhole:
    def test_by_hand(self) -> None:
        """0.5, 0.3 and 0.2 of 7 are 3.5, 2.1 and 1.4: floors 3, 2, 1 and the one left over to the first."""
        assert whole(np.array([0.5, 0.3, 0.2]), 7).tolist() == [4, 2, 1]

    def test_ties_go_to_the_lower_number(self) -> None:
        assert whole(np.array([0.25, 0.25, 0.25, 0.25]), 6).tolist() == [2, 2, 1, 1]

    @settings(max_examples=60)
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=30).filter(lambda s: sum(s) > 1e-3), st.integers(0, 10_000))
    def test_sums_to_the_total_and_stays_within_one(self, weights: list[float], total: int) -> None:
        share = np.array(weights) / sum(weights)
        sizes = whole(share, total)
        assert sizes.sum() == total
        assert np.all(np.abs(sizes - share * total) <= 1 + 1e-6)


class TestRefuses:
    @pytest.mark.parametrize("alpha", [0.0, -0.1, float("nan"), float("inf")])
    @pytest.mark.parametrize("scheme", [Dirichlet, DirichletBalanced])
    def test_alpha(self, scheme: type[Dirichlet] | type[DirichletBalanced], alpha: float) -> None:
        with pytest.raises(ConfigError, match=re.escape(f"finite number above 0, got {alpha}; 0.1 makes clients")):
            scheme(alpha=alpha)

    def test_negative_smallest_size(self) -> None:
        with pytest.raises(ConfigError, match="0 or more samples per client, got -1"):
            DirichletBalanced(min_size=-1)

    def test_unknown_options(self) -> None:
        with pytest.raises(ValidationError, match="beta"):
            Dirichlet(beta=1.0)  # type: ignore[call-arg]
