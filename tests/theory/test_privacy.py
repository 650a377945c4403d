"""K7 and what composes: the noise, its variance, and the (ε, δ) of a run's representations."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from headwater.theory import privacy
from headwater.theory.privacy import (
    aggregated_variance,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_sigma,
    least_count,
    noise_variance,
    sensitivity,
    sigma_min,
    spent,
)

SETTINGS = [(0.5, 0.01), (0.9, 1e-5), (0.1, 1e-9)]


def test_examples() -> None:
    assert doctest.testmod(privacy).failed == 0


class TestNoise:
    def test_k7_numbers(self) -> None:
        assert sigma_min(0.5, 0.01) == pytest.approx(6.2150, abs=5e-5)
        assert sensitivity(3, 256) == 6 / 256
        assert noise_variance(7, sensitivity(3, 256)) == pytest.approx(0.026917, abs=5e-7)

    def test_k7_aggregated_variance(self) -> None:
        """Weights by count: m·σ²(2ζ/N)² whatever the counts; by hand 4·(0.25·1 + 0.25·4) for a = ½, S = 1 and 2."""
        assert aggregated_variance(2.0, [0.5, 0.5], [1.0, 2.0]) == pytest.approx(5.0)
        counts = [2, 30, 200, 24]
        weights, spread = [n / 256 for n in counts], [sensitivity(3, n) for n in counts]
        assert aggregated_variance(7, weights, spread) == pytest.approx(4 * 49 * (6 / 256) ** 2)

    def test_k7_drawn_noise_has_this_variance(self) -> None:
        rng = np.random.default_rng(0)
        counts = np.array([10, 30, 60])
        weights, spread = counts / 100, np.array([sensitivity(3, int(n)) for n in counts])
        drawn = rng.normal(size=(200_000, 3)) * (7 * spread)
        for each, s in zip(drawn.T, spread, strict=True):
            assert np.var(each) == pytest.approx(noise_variance(7, s), rel=0.02)
        assert np.var(drawn @ weights) == pytest.approx(aggregated_variance(7, list(weights), list(spread)), rel=0.02)

    @settings(max_examples=80)
    @given(st.integers(2, 40), st.integers(1, 8), st.integers(0, 2**32 - 1))
    def test_sensitivity_bounds_a_replacement_and_is_reached(self, count: int, dimension: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = np.clip(rng.normal(size=(count, dimension)) * 4, -3, 3)
        other = rows.copy()
        other[0] = np.clip(rng.normal(size=dimension) * 4, -3, 3)
        moved = rows.mean(0) - other.mean(0)
        assert np.abs(moved).max() <= sensitivity(3, count) + 1e-12
        assert np.linalg.norm(moved) <= sensitivity(3, count, dimension, "l2") + 1e-12
        rows[0], other[0] = 3, -3
        moved = rows.mean(0) - other.mean(0)
        assert np.linalg.norm(moved) == pytest.approx(sensitivity(3, count, dimension, "l2"))

    def test_least_count(self) -> None:
        assert least_count(0.25, 1024) == 256
        assert least_count(0.25, 1023) == 256
        assert least_count(0.25, 1025) == 257
        assert least_count(0.0, 9) == 0

    @settings(max_examples=80)
    @given(st.integers(0, 1000), st.integers(1, 1000))
    def test_least_count_is_the_first_that_shares(self, thousandths: int, samples: int) -> None:
        """Also where ν times the samples is not a whole number only by rounding."""
        nu = thousandths / 1000
        first = least_count(nu, samples)
        assert first / samples >= nu
        assert first == 0 or (first - 1) / samples < nu


class TestAnalytic:
    @pytest.mark.parametrize(("epsilon", "sigma"), [(0.0, 1.0), (0.3, 2.0), (1.0, 1.0), (2.0, 0.7), (6.0, 0.5)])
    def test_delta_is_the_integral_of_what_exceeds(self, epsilon: float, sigma: float) -> None:
        """∫ max(0, p − e^ε q) for the two densities one unit apart, without any formula for it."""
        edge = sigma**2 * epsilon + 0.5  # p > e^ε q above this
        excess = quad(
            lambda x: norm.pdf(x, 1, sigma) - math.exp(epsilon) * norm.pdf(x, 0, sigma), edge, 1 + 12 * sigma
        )[0]
        assert gaussian_delta(epsilon, sigma) == pytest.approx(excess, rel=1e-7)

    @pytest.mark.parametrize(("epsilon", "sigma"), [(0.2, 3.0), (1.0, 1.0), (4.0, 1.0), (20.0, 0.3)])
    def test_delta_is_the_printed_formula(self, epsilon: float, sigma: float) -> None:
        a, b = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
        assert gaussian_delta(epsilon, sigma) == pytest.approx(norm.cdf(a) - math.exp(epsilon) * norm.cdf(b), rel=1e-9)

    @pytest.mark.parametrize(("epsilon", "sigma"), [(35.0, 1.0), (0.01, 500.0), (9.0, 4.0), (1300.0, 0.02)])
    def test_delta_keeps_its_digits(self, epsilon: float, sigma: float) -> None:
        """Where the two terms agree in most digits, or e^ε is too large for a float: against 1000 digits."""
        mp = pytest.importorskip("mpmath").mp.clone()
        mp.dps = 1000
        e, s = mp.mpf(epsilon), mp.mpf(sigma)
        exact = mp.ncdf(1 / (2 * s) - e * s) - mp.exp(e) * mp.ncdf(-1 / (2 * s) - e * s)
        assert gaussian_delta(epsilon, sigma) == pytest.approx(float(exact), rel=1e-9, abs=0)

    @settings(max_examples=80)
    @given(st.floats(0.05, 50), st.floats(1e-12, 0.5))
    def test_inversions_give_back(self, sigma: float, delta: float) -> None:
        epsilon = gaussian_epsilon(sigma, delta)
        if epsilon > 1e-6:
            assert gaussian_delta(epsilon, sigma) == pytest.approx(delta, rel=1e-6)
            assert gaussian_sigma(epsilon, delta) == pytest.approx(sigma, rel=1e-6)
        else:
            assert gaussian_delta(epsilon, sigma) <= delta * (1 + 1e-6)

    @pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
    def test_the_classic_rule_is_safe_and_not_tight(self, epsilon: float, delta: float) -> None:
        assert gaussian_delta(epsilon, sigma_min(epsilon, delta)) < delta
        assert gaussian_sigma(epsilon, delta) < sigma_min(epsilon, delta)

    def test_classic_rule_would_fail_above_one(self) -> None:
        """Why the limit is there: at ε = 10 the classic constant gives a δ above the one asked for."""
        assert gaussian_delta(10, math.sqrt(2 * math.log(1.25 / 0.2)) / 10) > 0.2

    def test_without_noise(self) -> None:
        assert gaussian_delta(5.0, 0.0) == gaussian_delta(5.0, 0.01) == 1.0
        assert gaussian_epsilon(0.0, 0.01) == math.inf

    def test_with_so_much_noise_that_epsilon_is_zero(self) -> None:
        assert gaussian_epsilon(1e6, 1e-5) == 0.0
        assert gaussian_delta(0.0, 2.0) == pytest.approx(2 * norm.cdf(0.25) - 1)


class TestComposition:
    def test_exact_composition_is_one_release_over_root_k(self) -> None:
        assert spent(6.0, 9, 1e-5, 4).epsilon == pytest.approx(gaussian_epsilon(6 / 3 / 2, 1e-5))
        assert spent(6.0, 9, 1e-5, 4).multiplier == pytest.approx(1.0)
        assert spent(6.0, 9, 1e-5, 4, "l2").epsilon == pytest.approx(gaussian_epsilon(2.0, 1e-5))

    def test_composition_from_the_privacy_loss(self) -> None:
        """The loss of k releases is a sum of k normal losses; its tail gives δ without the σ/√k rule."""
        sigma, k, epsilon = 4.0, 7, 1.5
        mean, spread = k / (2 * sigma**2), math.sqrt(k) / sigma
        tail = quad(lambda x: (1 - math.exp(epsilon - x)) * norm.pdf(x, mean, spread), epsilon, mean + 14 * spread)[0]
        assert gaussian_delta(epsilon, sigma / math.sqrt(k)) == pytest.approx(tail, rel=1e-7)

    @pytest.mark.parametrize("dimension", [1, 64])
    @pytest.mark.parametrize("releases", [2, 50])
    def test_order_of_the_figures(self, releases: int, dimension: int) -> None:
        """Adding up costs more than composing, and the whole more than one coordinate of one release."""
        found = spent(7.0, releases, 0.01, dimension)
        assert found.single < found.epsilon < found.basic
        assert found.basic == releases * gaussian_epsilon(7.0 / math.sqrt(dimension), 0.01 / releases)
        assert found.epsilon > spent(7.0, releases - 1, 0.01, dimension).epsilon
        assert found.epsilon >= spent(7.0, releases, 0.01, dimension, "l2").epsilon

    def test_one_release_of_one_coordinate_is_all_the_same(self) -> None:
        found = spent(7.0, 1, 0.01, 1)
        assert found.epsilon == found.basic == found.single == spent(7.0, 1, 0.01, 1, "l2").epsilon

    def test_the_papers_claim_is_for_one_coordinate_of_one_release(self) -> None:
        """σ = 7 is chosen for (0.5, 0.01); for 64 coordinates one release is already beyond that."""
        assert spent(7.0, 1, 0.01, 64).single < 0.5
        assert spent(7.0, 1, 0.01, 64).epsilon > 0.5

    def test_sentences(self) -> None:
        noisy, bare, none = (spent(s, k, 0.01, d).sentence() for s, k, d in ((7.0, 2, 3), (0.0, 1, 1), (7.0, 0, 64)))
        assert noisy.startswith(f"Representations only: ε = {gaussian_epsilon(7 / math.sqrt(6), 0.01):.4g} at")
        assert "at δ = 0.01 for 2 releases of a mean of 3 coordinates (replace-one; class counts public;" in noisy
        assert "no finite ε for 1 release of a mean of 1 coordinate with a noise multiplier of 0 " in bare
        assert "nothing was released" in none
        for each in (noisy, bare, none):
            assert each.endswith("go out without noise, so the run as a whole has no finite ε.")

    def test_ends(self) -> None:
        assert (spent(0.0, 3, 0.01, 64).epsilon, spent(0.0, 3, 0.01, 64).basic) == (math.inf, math.inf)
        assert (spent(7.0, 0, 0.01, 64).epsilon, spent(7.0, 0, 0.01, 64).delta) == (0.0, 0.0)


@pytest.mark.parametrize(("sigma", "releases", "delta"), [(7.0, 1, 0.01), (7.0, 50, 0.01), (20.0, 200, 1e-5)])
def test_agrees_with_another_accountant(sigma: float, releases: int, delta: float) -> None:
    """The package dp_accounting discretises and rounds up: never below, and by little above."""
    library = pytest.importorskip("dp_accounting", reason="the optional privacy accountant is not installed")
    from dp_accounting import pld

    # sigma already counts in units of what replacing a sample does; the package's own REPLACE_ONE would double that
    accountant = pld.PLDAccountant(library.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(library.GaussianDpEvent(sigma), releases)
    theirs = float(accountant.get_epsilon(delta))
    own = spent(sigma, releases, delta, 1).epsilon
    assert own * (1 - 1e-6) <= theirs <= own * 1.0001


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: sigma_min(1.0, 0.01), "below 1, got 1.0; use gaussian_sigma, the analytic one"),
        (lambda: sigma_min(0.0, 0.01), "above 0 and below 1, got 0.0"),
        (lambda: sigma_min(0.5, 1.0), "delta must be above 0 and below 1, got 1.0"),
        (lambda: gaussian_epsilon(-1.0, 0.1), "sigma must be 0 or more and finite, got -1.0"),
        (lambda: gaussian_epsilon(math.nan, 0.1), "sigma must be 0 or more and finite, got nan"),
        (lambda: gaussian_delta(-0.1, 1.0), "epsilon must be 0 or more, got -0.1"),
        (lambda: gaussian_sigma(-0.1, 0.1), "epsilon must be 0 or more, got -0.1"),
        (lambda: sensitivity(3, 1), "among 2 or more, got a class of 1; do not share it"),
        (lambda: sensitivity(math.inf, 9), "must be above 0 and finite, got inf; clip"),
        (lambda: sensitivity(3, 9, 0), "1 coordinate or more, got 0"),
        (lambda: sensitivity(3, 9, 4, "l1"), 'must be "per_coordinate" or "l2", got \'l1\''),  # type: ignore[arg-type]
        (lambda: aggregated_variance(1, [1.0], []), "1 weights were given for 0 sensitivities"),
        (lambda: least_count(1.5, 10), "threshold must be from 0 to 1, got 1.5"),
        (lambda: least_count(0.5, 0), "1 sample or more, got 0"),
        (lambda: spent(7.0, -1, 0.01, 64), "releases must be 0 or more, got -1"),
    ],
)
def test_refuses(call, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=said):
        call()
