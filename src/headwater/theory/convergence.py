"""The bounds of the FedHEAD paper for strongly convex losses, as functions of their constants.

Every phase of a round adds an error term B to the bound and some steps to its denominator. Local training gives B_l and
n_l steps, distillation at sectors B_s and n̄_s, distillation at the server B_g and n̄_g. A phase lowers the bound if
its error per step is small enough, which is what the comparisons below test.

| paper | here | | paper | here |
|---|---|---|---|---|
| L, μ | smoothness, convexity | | Γ_client, Γ_sec, Γ_ref | client_gap, sector_gap, reference_gap |
| σ², G² | variance, gradient | | p_k, p_m | client_shares, sector_shares |
| δ, ε | delta, epsilon | | n_l, n_s | local, sector |
| Δ₁ | distance | | n̄_s, n̄_g | sector_mean, server_mean |

Where the text contradicts itself, the consistent form is used: the factor 1 − δ of its equation (8) that a lemma leaves
out, and B_s where one maximum lists B_g twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headwater.theory import not_below


@dataclass(frozen=True)
class Problem:
    """The constants of a problem and of how well distillation works on it."""

    smoothness: float  # L
    convexity: float  # μ, strong convexity
    variance: float  # σ², of a stochastic gradient
    gradient: float  # G², bound on the squared norm of a stochastic gradient
    client_shares: tuple[float, ...]  # p_k
    sector_shares: tuple[float, ...]  # p_m
    client_gap: float = 0.0  # Γ_client
    sector_gap: float = 0.0  # Γ_sec
    reference_gap: float = 0.0  # Γ_ref, between the reference set and the clients' data
    delta: float = 1.0  # δ, from 0 to 1: at 1 distillation adds neither noise nor drift
    epsilon: float = 0.0  # ε, error that distillation adds in any case
    distance: float = 1.0  # Δ₁, squared distance of the start from the optimum

    def __post_init__(self) -> None:
        if not 0 < self.convexity <= self.smoothness:
            raise ValueError(
                f"smoothness must be at least convexity, and that above 0, got {self.smoothness} and {self.convexity}"
            )
        if not 0 <= self.delta <= 1:
            raise ValueError(f"delta must be from 0 to 1, got {self.delta}")
        single = ("smoothness", "variance", "gradient", "client_gap", "sector_gap", "reference_gap", "epsilon")
        not_below(**{name: getattr(self, name) for name in (*single, "distance")})

    @property
    def condition(self) -> float:
        """κ = L / μ."""
        return self.smoothness / self.convexity


def local_error(p: Problem, local: int) -> float:
    """B_l, equation (7): client heterogeneity, noise reduced by averaging, and drift, quadratic in the steps."""
    noise = p.variance * sum(share**2 for share in p.client_shares)
    return 6 * p.smoothness * p.client_gap + noise + 8 * (local - 1) ** 2 * p.gradient


def sector_error(p: Problem, sector: int) -> float:
    """B_s, equation (8): as B_l with sectors instead of clients, plus ε. Noise and drift decrease with δ."""
    away = 1 - p.delta
    noise = away * (p.variance + p.gradient) * sum(share**2 for share in p.sector_shares)
    return 6 * p.smoothness * (p.sector_gap + p.epsilon) + noise + 8 * away * (sector - 1) ** 2 * p.gradient


def server_error(p: Problem) -> float:
    """B_g, equation (27): mismatch of the reference set, ε, and gradient noise without averaging."""
    return 2 * p.smoothness * (p.reference_gap + p.epsilon) + (1 - p.delta) * p.variance


def offset(p: Problem, local: int, sector: int = 0) -> float:
    """γ: the maximum of the phase lengths and 8κ."""
    return max(float(local), float(sector), 8 * p.condition)


def step_size(p: Problem, step: int, offset: float) -> float:
    """η of a step: 2/μ over (step + γ − 1), the decreasing rule under which the bounds hold."""
    return 2 / p.convexity / (step + offset - 1)


def bound(p: Problem, rounds: int, steps: float, error: float, offset: float) -> float:
    """Bound on the expected loss above the optimum after `rounds` rounds. `error` is the sum of the error terms."""
    start = p.convexity * offset * p.distance / 2
    return p.condition / (steps * rounds + offset) * (2 * error / p.convexity + start)


def rounds_to(p: Problem, target: float, steps: float, error: float, offset: float) -> int:
    """The first round after which `bound` is at most `target`. The bound is solved for the number of rounds.

    >>> p = Problem(1.0, 0.5, 1.0, 1.0, (0.5, 0.5), (1.0,))
    >>> t = rounds_to(p, 0.01, steps=5, error=2.0, offset=16.0)
    >>> bound(p, t, 5, 2.0, 16.0) <= 0.01 < bound(p, t - 1, 5, 2.0, 16.0)
    True
    """
    if not 0 < target < math.inf:
        raise ValueError(f"target must be above 0 and finite, got {target}")
    at_start = bound(p, 0, steps, error, offset) * offset
    return max(0, math.ceil((at_start / target - offset) / steps))


def fedavg_bound(p: Problem, rounds: int, local: int) -> float:
    """Equation (24)."""
    return bound(p, rounds, local, local_error(p, local), offset(p, local))


def fedhead_bound(p: Problem, rounds: int, local: int, sector: int, sector_mean: float) -> float:
    """Equation (6). `sector` is the largest number of distillation steps, `sector_mean` their mean with early stops."""
    error = local_error(p, local) + sector_error(p, sector)
    return bound(p, rounds, local + sector_mean, error, offset(p, local, sector))


def fedhead_plus_bound(
    p: Problem, rounds: int, local: int, sector: int, sector_mean: float, server_mean: float
) -> float:
    """Equation (26)."""
    error = local_error(p, local) + sector_error(p, sector) + server_error(p)
    return bound(p, rounds, local + sector_mean + server_mean, error, offset(p, local, sector))


def feddf_bound(p: Problem, rounds: int, local: int, server_mean: float) -> float:
    """Equation (32)."""
    return bound(p, rounds, local + server_mean, local_error(p, local) + server_error(p), offset(p, local))


# Comparisons. For large t a bound is proportional to ΣB / Σn over the phases of a round. A further phase (B, n) does
# not raise this ratio if and only if B/n is at most the ratio (mediant inequality). Each function tests this condition.


def fedhead_beats_fedavg(local: int, sector_mean: float, local_error: float, sector_error: float) -> bool:
    return sector_mean * local_error >= local * sector_error


def feddf_beats_fedavg(local: int, server_mean: float, local_error: float, server_error: float) -> bool:
    return server_mean * local_error >= local * server_error


def fedhead_plus_beats_feddf(
    local: int, sector_mean: float, server_mean: float, local_error: float, sector_error: float, server_error: float
) -> bool:
    return sector_mean * (local_error + server_error) >= sector_error * (local + server_mean)


# Sufficient conditions for phases of equal length n: each implies that the method with the additional phase has the
# smaller bound for some number of steps up to n. They use error terms without noise, and n instead of n − 1.


def sector_distillation_can_pay(p: Problem, steps: int) -> bool:
    """FedHEAD over FedAvg: δ/ε ≥ 3L / (4 n² G²)."""
    return 4 * steps**2 * p.gradient * p.delta >= 3 * p.smoothness * p.epsilon


def sector_distillation_can_pay_before_server(p: Problem, steps: int) -> bool:
    """FedHEAD+ over FedDF: Γ_ref ≥ 3 Γ_client, and δ ≥ ½ + 5Lε / (8 n² G²)."""
    needed = 0.5 + 5 * p.smoothness * p.epsilon / (8 * steps**2 * p.gradient)
    return p.reference_gap >= 3 * p.client_gap and p.delta >= needed


def server_distillation_can_pay(p: Problem, steps: int) -> bool:
    """FedDF over FedAvg: Γ_ref ≤ 3 Γ_client, and Lε ≤ 4 n² G²."""
    return p.reference_gap <= 3 * p.client_gap and p.smoothness * p.epsilon <= 4 * steps**2 * p.gradient
