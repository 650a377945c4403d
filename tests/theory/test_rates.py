"""K10 and the other calculators: by hand, in the limit, and against what they were derived from."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace

import numpy as np
import pytest

from headwater.theory import rates
from headwater.theory.rates import (
    Knowledge,
    effective_clients,
    feddf_generalisation,
    fedhkd_drift,
    fedhkd_floor,
    fedhkd_rounds,
    fedhkd_step_limit,
    mtgc_rate,
)

K = Knowledge(
    smoothness=2.0,
    extractor=3.0,
    classifier=0.5,
    gradient=2.0,
    variance=4.0,
    steps=5,
    lr=0.1,
    prediction=0.05,
    feature=0.02,
)


def test_examples() -> None:
    assert doctest.testmod(rates).failed == 0


class TestMtgc:
    def test_by_hand(self) -> None:
        """F₀ = 2, L = 4, σ² = 9, T = 8, E = 3, H = 6, Ñ = 2: √(72/288), (24/8)^⅔ and 8/8."""
        found = mtgc_rate(2.0, 4.0, 9.0, rounds=8, sector_rounds=3, steps=6, clients=2)
        assert (found.noise, found.drift, found.start) == pytest.approx((0.5, 3 ** (2 / 3), 1.0))
        assert found.total == pytest.approx(1.5 + 3 ** (2 / 3))

    def test_how_each_term_falls(self) -> None:
        """Four times the rounds: a half, 4^−⅔ and a quarter. Clients, sector rounds and steps help the first alone."""
        base = {"rounds": 8, "sector_rounds": 3, "steps": 6, "clients": 2}
        first = mtgc_rate(2.0, 4.0, 9.0, **base)
        longer = mtgc_rate(2.0, 4.0, 9.0, **(base | {"rounds": 32}))
        assert longer.noise == pytest.approx(first.noise / 2)
        assert longer.drift == pytest.approx(first.drift * 4 ** (-2 / 3))
        assert longer.start == pytest.approx(first.start / 4)
        for name in ("sector_rounds", "steps", "clients"):
            more = mtgc_rate(2.0, 4.0, 9.0, **(base | {name: 4 * base[name]}))
            assert more.noise == pytest.approx(first.noise / 2)
            assert (more.drift, more.start) == (first.drift, first.start)

    def test_without_noise_only_the_start_is_left(self) -> None:
        found = mtgc_rate(2.0, 4.0, 0.0, 8, 3, 6, 2)
        assert (found.noise, found.drift, found.total) == (0, 0, 1.0)

    def test_noise_leads_after_many_rounds(self) -> None:
        found = mtgc_rate(2.0, 4.0, 9.0, 10**12, 3, 6, 2)
        assert found.noise > 10 * found.drift > 10 * found.start

    def test_effective_clients(self) -> None:
        """Equal sectors: all. 9 and 1: 4/(1/9 + 1) = 3.6. Never above the number of clients."""
        assert effective_clients([4, 4, 4]) == pytest.approx(12)
        assert effective_clients([1]) == 1
        assert effective_clients([9, 1]) == pytest.approx(3.6)
        rng = np.random.default_rng(0)
        for _ in range(50):
            teams = rng.integers(1, 9, size=4).tolist()
            assert effective_clients(teams) <= sum(teams) + 1e-9

    def test_effective_clients_from_drawn_noise(self) -> None:
        rng = np.random.default_rng(1)
        means = [rng.normal(size=(200_000, n)).mean(1) for n in (1, 2, 5)]
        assert 1 / np.var(np.mean(means, axis=0)) == pytest.approx(effective_clients([1, 2, 5]), rel=0.02)


class TestFedHkd:
    def test_drift_by_hand(self) -> None:
        """½·0.01·2·5·(5·4 + 4) + 2·0.05·0.1·0.5·4·5·2 + 2·0.02·0.1·3·5·2."""
        assert fedhkd_drift(K) == pytest.approx(1.2 + 0.2 + 0.12)

    def test_k10_rounds_by_hand(self) -> None:
        """At ε = 5: 5·5·(0.2 − 0.02) − 0.01·2·5·24 − 4·0.05·0.1·0.5·4·5·2 − 4·0.02·0.1·3·5·2, which is 1.46."""
        assert fedhkd_rounds(K, gap=3.0, epsilon=5.0) == pytest.approx(6 / 1.46)

    def test_k10_sign_guard(self) -> None:
        """The denominator 0.9ε − 3.04 is 0 at 3.3778: a number just above, a sentence at and below."""
        floor = fedhkd_floor(K)
        assert floor == pytest.approx(3.04 / 0.9)
        assert fedhkd_rounds(K, 3.0, floor * (1 + 1e-6)) > 1e5
        for epsilon in (floor * (1 - 1e-9), 1.0):
            with pytest.raises(ValueError, match=r"no number of rounds is promised for epsilon .* down to 3\.37778"):
                fedhkd_rounds(K, 3.0, epsilon)

    def test_k10_goes_as_one_over_epsilon(self) -> None:
        """T·ε → 2Δ / (E(2η − η²L₁)) = 6/0.9 for large ε; exactly so when nothing drifts."""
        assert fedhkd_rounds(K, 3.0, 1e9) * 1e9 == pytest.approx(6 / 0.9)
        ratio = fedhkd_rounds(K, 3.0, 1e6) / fedhkd_rounds(K, 3.0, 2e6)
        assert ratio == pytest.approx(2, rel=1e-5)
        still = replace(K, gradient=0.0, variance=0.0)
        assert fedhkd_drift(still) == fedhkd_floor(still) == 0
        assert fedhkd_rounds(still, 3.0, 0.01) == pytest.approx(6 / 0.009)

    def test_rounds_pay_for_the_drift(self) -> None:
        """T rounds that each gain ½εE(2η − η²L₁) and lose the drift use up the gap: where Theorem 3 comes from."""
        rounds = fedhkd_rounds(K, 3.0, 5.0)
        assert rounds * (0.5 * 5.0 * 5 * (2 * 0.1 - 0.01 * 2) - fedhkd_drift(K)) == pytest.approx(3.0)

    def test_knowledge_terms_only_add(self) -> None:
        plain = replace(K, prediction=0.0, feature=0.0)
        assert fedhkd_drift(plain) == pytest.approx(1.2)
        assert fedhkd_rounds(plain, 3.0, 5.0) < fedhkd_rounds(K, 3.0, 5.0)

    def test_step_limit_by_hand(self) -> None:
        """‖∇L‖ = 3, α = ½: [2·2.25 − 4·½·(0.05·0.5·4 + 0.02·3)·2] / [2·(24 + 2.25)]."""
        assert fedhkd_step_limit(K, 3.0, alpha=0.5) == pytest.approx((4.5 - 0.64) / 52.5)

    def test_step_limit_is_where_the_step_stops_paying(self) -> None:
        """At α = 1 a step changes the loss by (½η²L₁ − η)‖∇L‖² + ½η²L₁(EV² + σ²) + 2η·pull at most."""

        def change(lr: float) -> float:
            return (lr**2 - lr) * 9 + lr**2 * 24 + 2 * lr * (0.05 * 0.5 * 4 + 0.02 * 3) * 2

        limit = fedhkd_step_limit(K, 3.0)
        assert change(limit) == pytest.approx(0, abs=1e-12)
        assert change(0.99 * limit) < 0 < change(1.01 * limit)

    def test_no_step_is_small_enough_near_a_minimum(self) -> None:
        """The knowledge terms can pull with 0.32: below ‖∇L‖² = 0.64 nothing is promised, without them it is."""
        assert fedhkd_step_limit(K, 0.7) == 0
        assert fedhkd_step_limit(K, 0.9) > 0
        assert fedhkd_step_limit(replace(K, prediction=0.0, feature=0.0), 0.01) > 0
        assert fedhkd_step_limit(replace(K, gradient=0.0, variance=0.0), 0.0) == 0


class TestFedDf:
    def test_by_hand(self) -> None:
        """K = 2, δ = 0.04, m = 50: 0.1 + ½(0.1 + 0.05 + 0.3 + 0.15) + √(ln 100 / 100)."""
        found = feddf_generalisation(0.1, [0.2, 0.6], [0.05, 0.15], 50, 0.04)
        assert found.mismatch == pytest.approx(0.3)
        assert found.sampling == pytest.approx(math.sqrt(math.log(100) / 100))
        assert found.total == pytest.approx(0.4 + found.sampling)

    def test_limits(self) -> None:
        """Clients alike and samples without end leave the empirical loss; more clients and surer bounds cost."""
        assert feddf_generalisation(0.1, [0.0] * 3, [0.0] * 3, 10**16, 0.05).total == pytest.approx(0.1, abs=1e-7)
        base = feddf_generalisation(0.1, [0.2] * 2, [0.1] * 2, 50, 0.04)
        more = feddf_generalisation(0.1, [0.2] * 20, [0.1] * 20, 50, 0.04)
        assert more.mismatch == pytest.approx(base.mismatch)
        assert more.sampling > base.sampling
        assert feddf_generalisation(0.1, [0.2] * 2, [0.1] * 2, 50, 0.01).sampling > base.sampling
        assert feddf_generalisation(0.1, [0.2] * 2, [0.1] * 2, 200, 0.04).sampling == pytest.approx(base.sampling / 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mtgc_rate(1, 1, 1, 0, 1, 1, 1), "rounds must be above 0 and finite, got 0"),
        (lambda: mtgc_rate(1, 1, -1, 1, 1, 1, 1), "variance must be 0 or more and finite, got -1"),
        (lambda: mtgc_rate(math.nan, 1, 1, 1, 1, 1, 1), "gap must be 0 or more and finite, got nan"),
        (lambda: effective_clients([3, 0]), r"1 client or more, got \[3, 0\]; leave out"),
        (lambda: effective_clients([]), r"1 client or more, got \[\]"),
        (lambda: replace(K, smoothness=0.0), "smoothness must be above 0 and finite, got 0.0"),
        (lambda: replace(K, feature=-0.1), "feature must be 0 or more and finite, got -0.1"),
        (lambda: fedhkd_rounds(replace(K, lr=1.0), 1, 9), "lr must be below 2 / smoothness = 1, got 1.0"),
        (lambda: fedhkd_rounds(K, 1, 0), "epsilon must be above 0 and finite, got 0"),
        (lambda: fedhkd_step_limit(K, 1.0, alpha=0.0), "alpha must be above 0 and finite, got 0.0"),
        (lambda: feddf_generalisation(0.1, [0.1], [], 9, 0.1), "1 divergences were given for 0 joint errors"),
        (lambda: feddf_generalisation(0.1, [0.1], [0.1], 9, 1.0), "delta must be above 0 and below 1, got 1.0"),
        (lambda: feddf_generalisation(0.1, [-0.1], [0.1], 9, 0.1), "divergence must be 0 or more and finite, got -0.1"),
        (lambda: feddf_generalisation(0.1, [0.1], [0.1], 0, 0.1), "samples must be above 0 and finite, got 0"),
    ],
)
def test_refuses(call, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=said):
        call()
