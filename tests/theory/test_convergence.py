"""H14: the bounds as calculators."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from headwater.theory import convergence as theory
from headwater.theory.convergence import Problem

P = Problem(
    smoothness=4.0,
    convexity=2.0,
    variance=3.0,
    gradient=5.0,
    client_shares=(0.5, 0.25, 0.25),
    sector_shares=(0.75, 0.25),
    client_gap=0.5,
    sector_gap=0.25,
    reference_gap=1.0,
    delta=0.5,
    epsilon=0.125,
    distance=2.0,
)


class TestByHand:
    def test_error_terms(self) -> None:
        """B_l = 6·4·0.5 + 3·0.375 + 8·2²·5; B_s = 6·4·0.375 + 0.5·8·0.625 + 8·0.5·1·5; B_g = 2·4·1.125 + 0.5·3."""
        assert theory.local_error(P, 3) == pytest.approx(12 + 1.125 + 160)
        assert theory.sector_error(P, 2) == pytest.approx(9 + 2.5 + 20)
        assert theory.server_error(P) == pytest.approx(9 + 1.5)

    def test_bounds(self) -> None:
        """κ = 2, so γ = 16 unless a phase is longer; each is 2/(steps·t + 16)·(ΣB + 2·16·2/2) at t = 10."""
        local, sector, server = 173.125, 31.5, 10.5
        assert theory.fedavg_bound(P, 10, 3) == pytest.approx(2 / 46 * (local + 32))
        assert theory.fedhead_bound(P, 10, 3, 2, 1.5) == pytest.approx(2 / 61 * (local + sector + 32))
        assert theory.feddf_bound(P, 10, 3, 2.0) == pytest.approx(2 / 66 * (local + server + 32))
        expected = 2 / 81 * (local + sector + server + 32)
        assert theory.fedhead_plus_bound(P, 10, 3, 2, 1.5, 2.0) == pytest.approx(expected)

    def test_offset(self) -> None:
        assert theory.offset(P, 3) == 16
        assert theory.offset(P, 20) == 20
        assert theory.offset(P, 3, 40) == 40

    def test_step_size(self) -> None:
        """2/μ over step + γ − 1: 1/15 first, at most 1/(4L) since γ ≥ 8κ makes it small enough."""
        assert theory.step_size(P, 0, 16) == pytest.approx(1 / 15)
        assert theory.step_size(P, 10, 16) == pytest.approx(1 / 25)
        assert theory.step_size(P, 1, theory.offset(P, 1)) <= 1 / (4 * P.smoothness)


class TestSpecialCases:
    """Without sector distillation the longer methods' bounds are the shorter ones'."""

    WITHOUT = replace(P, sector_gap=0.0, epsilon=0.0, delta=1.0)

    def test_no_error(self) -> None:
        assert theory.sector_error(self.WITHOUT, 7) == 0

    @pytest.mark.parametrize("sector", [1, 3, 16])
    def test_fedhead_is_fedavg(self, sector: int) -> None:
        assert theory.fedhead_bound(self.WITHOUT, 9, 3, sector, 0) == theory.fedavg_bound(self.WITHOUT, 9, 3)

    def test_unless_the_phase_moves_the_offset(self) -> None:
        assert theory.fedhead_bound(self.WITHOUT, 9, 3, 17, 0) != theory.fedavg_bound(self.WITHOUT, 9, 3)

    def test_fedhead_plus_is_feddf(self) -> None:
        assert theory.fedhead_plus_bound(self.WITHOUT, 9, 3, 3, 0, 2) == theory.feddf_bound(self.WITHOUT, 9, 3, 2)


def test_bounds_fall_with_rounds() -> None:
    found = [
        [f(t) for t in range(0, 200, 7)]
        for f in (
            lambda t: theory.fedavg_bound(P, t, 3),
            lambda t: theory.fedhead_bound(P, t, 3, 3, 2),
            lambda t: theory.fedhead_plus_bound(P, t, 3, 3, 2, 2),
            lambda t: theory.feddf_bound(P, t, 3, 2),
        )
    ]
    for bounds in found:
        assert all(later < earlier for earlier, later in pairwise(bounds))
        assert bounds[-1] > 0


def draws(count: int = 400) -> list[tuple[Problem, int, int, float, float]]:
    """Random problems with Γ_sec ≤ Γ_client, a length n, and mean lengths up to n."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        shares, sectors = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(2))
        gap = rng.exponential()
        steps = int(rng.integers(1, 8))
        problem = Problem(
            smoothness=float(rng.uniform(1, 20)),
            convexity=1.0,
            variance=float(rng.exponential()),
            gradient=float(rng.exponential()),
            client_shares=tuple(shares),
            sector_shares=tuple(sectors),
            client_gap=float(gap),
            sector_gap=float(gap * rng.random()),
            reference_gap=float(rng.choice([0.1, 1, 3, 10]) * rng.exponential()),
            delta=float(rng.random()),
            epsilon=float(rng.choice([0.01, 0.1, 1]) * rng.exponential()),
        )
        found.append(
            (problem, steps, int(rng.integers(1, 8)), steps * float(rng.random()), steps * float(rng.random()))
        )
    return found


def test_comparisons_agree_with_the_ratios() -> None:
    """A method wins exactly if its ΣB over its steps is not above the other's; both outcomes occur."""
    wins: list[list[bool]] = [[], [], []]
    for p, local, sector, sector_mean, server_mean in draws():
        b_l, b_s, b_g = theory.local_error(p, local), theory.sector_error(p, sector), theory.server_error(p)
        pairs = [
            (
                theory.fedhead_beats_fedavg(local, sector_mean, b_l, b_s),
                (b_l + b_s) / (local + sector_mean) <= b_l / local,
            ),
            (
                theory.feddf_beats_fedavg(local, server_mean, b_l, b_g),
                (b_l + b_g) / (local + server_mean) <= b_l / local,
            ),
            (
                theory.fedhead_plus_beats_feddf(local, sector_mean, server_mean, b_l, b_s, b_g),
                (b_l + b_s + b_g) / (local + sector_mean + server_mean) <= (b_l + b_g) / (local + server_mean),
            ),
        ]
        for index, (said, direct) in enumerate(pairs):
            assert said == direct
            wins[index].append(said)
    assert all(0 < sum(won) < len(won) for won in wins)


def test_comparisons_agree_with_the_bounds_after_many_rounds() -> None:
    for p, local, _, sector_mean, _ in draws(50):
        b_l, b_s = theory.local_error(p, local), theory.sector_error(p, local)
        first, second = (b_l + b_s) / (local + sector_mean), b_l / local
        if abs(first / second - 1) > 0.01:
            head = theory.fedhead_bound(p, 10**9, local, local, sector_mean)
            averaged = theory.fedavg_bound(p, 10**9, local)
            near_start = p.convexity * theory.offset(p, local) * p.distance / 2
            if near_start < 0.001 * 2 * b_l:  # the start is forgotten
                assert (head < averaged) == theory.fedhead_beats_fedavg(local, sector_mean, b_l, b_s)


def approximate_local_error(p: Problem, steps: int) -> float:
    """B_l without noise, and with n in place of n − 1."""
    return 6 * p.smoothness * p.client_gap + 8 * steps**2 * p.gradient


def approximate_sector_error(p: Problem, steps: int) -> float:
    return 6 * p.smoothness * (p.sector_gap + p.epsilon) + 8 * (1 - p.delta) * steps**2 * p.gradient


def approximate_server_error(p: Problem) -> float:
    return 2 * p.smoothness * (p.reference_gap + p.epsilon)


class TestSufficientConditions:
    """On the approximate error terms and phases of equal length n: if a condition holds, n steps are enough to win."""

    def test_fedhead_over_fedavg(self) -> None:
        seen = 0
        for p, n, *_ in draws():
            if theory.sector_distillation_can_pay(p, n):
                seen += 1
                b_l, b_s = approximate_local_error(p, n), approximate_sector_error(p, n)
                assert theory.fedhead_beats_fedavg(n, n, b_l, b_s)
        assert 0 < seen < 400

    def test_fedhead_plus_over_feddf(self) -> None:
        seen = 0
        for p, n, *_ in draws():
            if theory.sector_distillation_can_pay_before_server(p, n):
                seen += 1
                b_l, b_s = approximate_local_error(p, n), approximate_sector_error(p, n)
                assert theory.fedhead_plus_beats_feddf(n, n, n, b_l, b_s, approximate_server_error(p))
        assert 0 < seen < 400

    def test_feddf_over_fedavg(self) -> None:
        seen = 0
        for p, n, *_ in draws():
            if theory.server_distillation_can_pay(p, n):
                seen += 1
                b_l, b_g = approximate_local_error(p, n), approximate_server_error(p)
                assert theory.feddf_beats_fedavg(n, n, b_l, b_g)
        assert 0 < seen < 400

    def test_are_tight_where_the_gaps_are_equal(self) -> None:
        """With Γ_sec = Γ_client, a little less than the first condition asks for and n steps no longer do."""
        p = replace(P, sector_gap=P.client_gap, epsilon=1.0, delta=3 * 4.0 / (4 * 4 * 5.0))
        b_l = approximate_local_error(p, 2)
        assert theory.sector_distillation_can_pay(p, 2)
        assert theory.fedhead_beats_fedavg(2, 2 + 1e-9, b_l, approximate_sector_error(p, 2))
        less = replace(p, delta=p.delta - 0.01)
        assert not theory.sector_distillation_can_pay(less, 2)
        assert not theory.fedhead_beats_fedavg(2, 2, b_l, approximate_sector_error(less, 2))

    def test_approximate_terms_drop_noise_and_the_minus_one(self) -> None:
        quiet = replace(P, variance=0.0, sector_shares=())
        assert approximate_local_error(quiet, 2) == pytest.approx(theory.local_error(quiet, 3))
        assert approximate_sector_error(quiet, 2) == pytest.approx(theory.sector_error(quiet, 3))
        assert approximate_server_error(quiet) == pytest.approx(theory.server_error(quiet))


def test_refuses() -> None:
    with pytest.raises(ValueError, match="smoothness must be at least convexity"):
        replace(P, smoothness=1.0)
    with pytest.raises(ValueError, match="delta must be from 0 to 1"):
        replace(P, delta=1.5)
    for name in ("variance", "gradient", "client_gap", "reference_gap", "epsilon", "distance"):
        with pytest.raises(ValueError, match=f"{name} must be 0 or more"):
            replace(P, **{name: -1.0})
    with pytest.raises(ValueError, match="smoothness must be 0 or more and finite"):
        replace(P, smoothness=float("inf"))


def test_rounds_to_a_target() -> None:
    """Solved by hand: 2/(3t + 16) · 205.125 ≤ 1 from 3t ≥ 394.25 on, that is from round 132."""
    error = theory.local_error(P, 3)
    assert theory.rounds_to(P, 1.0, 3, error, 16) == 132
    assert theory.fedavg_bound(P, 132, 3) <= 1 < theory.fedavg_bound(P, 131, 3)
    assert theory.rounds_to(P, 1e6, 3, error, 16) == 0
    with pytest.raises(ValueError, match="target must be above 0"):
        theory.rounds_to(P, 0.0, 3, error, 16)


def test_nothing_to_win_is_a_tie() -> None:
    """Without any error there is no ratio: only a phase without error does not lose."""
    assert theory.fedhead_beats_fedavg(3, 1.0, 0.0, 0.0)
    assert not theory.fedhead_beats_fedavg(3, 1.0, 0.0, 0.1)
