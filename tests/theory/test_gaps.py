from __future__ import annotations

import numpy as np
import pytest

from headwater.theory.softmax import gap
from oracles.quadratics import Quadratic, mixture, quadratic_gaps


def test_gap_by_hand() -> None:
    """½(x − 1)² and ½(x + 1)² with equal shares: alone 0 each, together ½ at x = 0."""
    pair = [Quadratic(np.eye(1), np.array([1.0])), Quadratic(np.eye(1), np.array([-1.0]))]
    both = mixture(pair, [0.5, 0.5])
    assert both.centre == pytest.approx([0.0])
    assert both.floor == pytest.approx(0.5)
    assert quadratic_gaps(pair, [0.5, 0.5], [0, 1]) == pytest.approx((0.5, 0.5))
    assert quadratic_gaps(pair, [0.5, 0.5], [0, 0]) == pytest.approx((0.5, 0.0))


def random_quadratics(count: int, seed: int) -> list[Quadratic]:
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(count, 3, 3))
    return [Quadratic(r @ r.T + 0.1 * np.eye(3), rng.normal(size=3) * 2, float(rng.exponential())) for r in roots]


def test_mixture_is_the_weighted_mean() -> None:
    parts = random_quadratics(4, 0)
    whole = mixture(parts, [1, 2, 3, 4])
    rng = np.random.default_rng(1)
    for x in rng.normal(size=(5, 3)):
        assert whole(x) == pytest.approx(sum(w / 10 * q(x) for w, q in zip((1, 2, 3, 4), parts, strict=True)))
        expected = sum(w / 10 * q.gradient(x) for w, q in zip((1, 2, 3, 4), parts, strict=True))
        assert whole.gradient(x) == pytest.approx(expected)
    assert whole.gradient(whole.centre) == pytest.approx(np.zeros(3), abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_h14_sectors_are_less_unlike_than_clients(seed: int) -> None:
    """H14: Σ p_k L_k* ≤ Σ p_m L_m* ≤ L*, hence 0 ≤ Γ_sec ≤ Γ_client, for any losses, shares and sectors."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(6)).tolist()
    sectors = [0, 1, 2, *rng.integers(3, size=3).tolist()]
    client, sector = quadratic_gaps(random_quadratics(6, seed), shares, sectors)
    assert -1e-12 <= sector <= client + 1e-12
    assert client > 0


def test_h14_equality_at_the_ends() -> None:
    parts, shares = random_quadratics(4, 3), [0.1, 0.2, 0.3, 0.4]
    client, sector = quadratic_gaps(parts, shares, [0, 1, 2, 3])
    assert sector == pytest.approx(client)  # a sector a client
    assert quadratic_gaps(parts, shares, [0, 0, 0, 0])[1] == pytest.approx(0, abs=1e-12)  # one sector
    alike = [parts[0]] * 4
    assert quadratic_gaps(alike, shares, [0, 0, 1, 1]) == pytest.approx((0, 0), abs=1e-12)


def test_refuses() -> None:
    with pytest.raises(ValueError, match="3 shares were given for 2 losses"):
        gap(1.0, [0.2, 0.3, 0.5], [1.0, 2.0])
    with pytest.raises(ValueError, match="add up to 1"):
        gap(1.0, [0.2, 0.3], [1.0, 2.0])
