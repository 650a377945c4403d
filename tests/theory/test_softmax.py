"""Softmax regression: its loss, gradient and constants against sums by hand, differences and enumeration."""

from __future__ import annotations

import doctest
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from headwater.theory import softmax
from headwater.theory.softmax import Regression, gap, joined, optima, squared


def drawn(seed: int, rows: int = 12, features: int = 3, classes: int = 3, decay: float = 0.1) -> Regression:
    """Rows of unequal share with soft targets."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(size=(rows, features - 1)), np.ones((rows, 1))], axis=1)
    target = rng.dirichlet(np.ones(classes), size=rows)
    return Regression(x, target, rng.dirichlet(np.ones(rows)), decay)


def labelled(seed: int, rows: int = 15, decay: float = 0.1) -> Regression:
    rng = np.random.default_rng(seed)
    shares = np.full(rows, 1 / rows)
    x = rng.normal(size=(rows, 3)) + rng.normal(size=3)
    return Regression(x, np.eye(3)[rng.integers(3, size=rows)], shares, decay)


def test_loss_by_hand() -> None:
    """Two rows: logits (ln 3, 0) against class 0 cost ln(4/3), against class 1 ln 4; ‖W‖² = (ln 3)²."""
    two = Regression(np.ones((2, 1)), np.eye(2), np.array([0.75, 0.25]), decay=2.0)
    weights = np.array([[np.log(3), 0.0]])
    expected = 0.75 * np.log(4 / 3) + 0.25 * np.log(4) + np.log(3) ** 2
    assert two.loss(weights) == pytest.approx(expected)
    assert two.residuals(weights) == pytest.approx(np.array([[-0.25, 0.25], [0.75, -0.75]]))


def test_gradient_is_that_of_differences() -> None:
    one, weights = drawn(0), np.random.default_rng(1).normal(size=(3, 3))
    found = one.gradient(weights)
    for i, j in product(range(3), range(3)):
        step = np.zeros((3, 3))
        step[i, j] = 1e-6
        assert found[i, j] == pytest.approx((one.loss(weights + step) - one.loss(weights - step)) / 2e-6, abs=1e-8)


def test_large_logits_overflow_nowhere() -> None:
    one = drawn(0)
    assert np.isfinite(one.loss(np.full((3, 3), 1e4) * np.array([1.0, -1.0, 0.5])))


def test_spread_is_the_variance_over_rows() -> None:
    """By enumeration: E‖g − ∇F‖² of one row drawn by share, and of two with replacement half of it."""
    one, weights = drawn(2, rows=5), np.random.default_rng(3).normal(size=(3, 3))
    each = [replace(one, share=np.eye(5)[i]).gradient(weights) for i in range(5)]
    mean = one.gradient(weights)
    assert sum(one.share[i] * each[i] for i in range(5)) == pytest.approx(mean)
    single = sum(one.share[i] * squared(each[i] - mean) for i in range(5))
    assert one.spread(weights) == pytest.approx(single)
    pairs = product(range(5), range(5))
    double = sum(one.share[i] * one.share[j] * squared((each[i] + each[j]) / 2 - mean) for i, j in pairs)
    assert double == pytest.approx(single / 2)


def test_curvature_stays_between_its_constants() -> None:
    """μ‖v‖² ≤ ⟨∇F(w + v) − ∇F(w), v⟩ ≤ L‖v‖² at random points."""
    rng = np.random.default_rng(4)
    for seed in range(20):
        one = drawn(seed)
        weights, away = rng.normal(size=(2, 3, 3)) * 2
        rise = ((one.gradient(weights + away) - one.gradient(weights)) * away).sum()
        assert one.decay * squared(away) - 1e-12 <= rise <= one.smoothness * squared(away) + 1e-12


def test_smoothness_is_reached() -> None:
    """One feature, two classes, logits 0: the softmax bends by ½ along (1, −1), so L = μ + ½x²."""
    one = Regression(np.array([[3.0]]), np.array([[1.0, 0.0]]), np.ones(1), decay=0.1)
    assert one.smoothness == pytest.approx(0.1 + 0.5 * 9)
    away = 1e-5 * np.array([[1.0, -1.0]])
    rise = ((one.gradient(away) - one.gradient(0 * away)) * away).sum()
    assert rise / squared(away) == pytest.approx(0.1 + 4.5)


def test_the_minimum_is_one() -> None:
    one = drawn(5)
    weights, lowest = one.minimise()
    assert np.abs(one.gradient(weights)).max() < 1e-7
    rng = np.random.default_rng(6)
    for _ in range(20):
        assert one.loss(weights + rng.normal(size=weights.shape) * 0.1) > lowest


def test_side_by_side_is_one_by_one() -> None:
    """Problems of unequal length, the shorter padded with rows of share 0."""
    first, second = drawn(7, rows=4), drawn(8, rows=6)
    fill = {name: [(0, 2)] + [(0, 0)] * (getattr(first, name).ndim - 1) for name in ("x", "target", "share")}
    stacked = {
        name: np.stack([np.pad(getattr(first, name), room), getattr(second, name)]) for name, room in fill.items()
    }
    both, weights = Regression(**stacked, decay=0.1), np.random.default_rng(9).normal(size=(2, 3, 3))
    for i, one in enumerate((first, second)):
        assert both.loss(weights)[i] == pytest.approx(float(one.loss(weights[i])))
        assert both.gradient(weights)[i] == pytest.approx(one.gradient(weights[i]))
        assert both.spread(weights)[i] == pytest.approx(float(one.spread(weights[i])))
        assert both.smoothness[i] == pytest.approx(float(one.smoothness))


def test_joined_is_the_weighted_mean() -> None:
    parts, weights = [drawn(i, rows=4 + i) for i in range(3)], np.random.default_rng(1).normal(size=(3, 3))
    whole = joined(parts, [1, 2, 5])
    assert whole.loss(weights) == pytest.approx(
        sum(w / 8 * part.loss(weights) for w, part in zip((1, 2, 5), parts, strict=True))
    )


@pytest.mark.parametrize("seed", [2, 5, *(pytest.param(n, marks=pytest.mark.thorough) for n in (0, 1, 3, 4, 6, 7))])
def test_h14_sectors_are_less_unlike_than_clients(seed: int) -> None:
    """H14 on this model: 0 ≤ Γ_sec ≤ Γ_client, and both as the definition says."""
    rng = np.random.default_rng(seed)
    clients = [labelled(100 * seed + k, rows=int(rng.integers(5, 15))) for k in range(6)]
    shares = rng.dirichlet(np.ones(6)).tolist()
    found = optima(clients, shares, [0, 1, 2, *rng.integers(3, size=3).tolist()])
    assert -1e-12 <= found.sector_gap <= found.client_gap + 1e-12
    alone = [client.minimise()[1] for client in clients]
    assert found.client_gap == pytest.approx(gap(found.loss, shares, alone), abs=1e-9)
    assert found.client_gap > 0


def test_gaps_at_the_ends() -> None:
    clients, shares = [labelled(k) for k in range(4)], [0.1, 0.2, 0.3, 0.4]
    apart = optima(clients, shares, [0, 1, 2, 3])
    assert apart.sector_gap == pytest.approx(apart.client_gap)
    assert optima(clients, shares, [0, 0, 0, 0]).sector_gap == pytest.approx(0, abs=1e-9)
    alike = optima([clients[0]] * 4, shares, [0, 0, 1, 1])
    assert (alike.client_gap, alike.sector_gap) == pytest.approx((0, 0), abs=1e-9)


def test_examples() -> None:
    assert doctest.testmod(softmax).failed == 0
