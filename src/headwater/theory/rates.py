"""Published rates and bounds of MTGC, FedHKD and FedDF, as functions of their constants.

| paper | here | | paper | here |
|---|---|---|---|---|
| F₀ | gap | | L₁ (L in MTGC) | smoothness |
| σ² | variance | | L₂, L₃ | extractor, classifier (Lipschitz constants) |
| T, E, H (MTGC) | rounds, sector_rounds, steps | | V | gradient (bound on the norm of a stochastic one) |
| Ñ | clients | | E, η (FedHKD) | steps, lr |
| Δ, ε | gap, epsilon | | λ, γ | prediction, feature (weights of the two knowledge terms) |

>>> mtgc_rate(gap=2.0, smoothness=1.0, variance=0.0, rounds=10, sector_rounds=2, steps=5, clients=8).total
0.2
>>> effective_clients([5, 5]), effective_clients([6, 3])
(10.0, 8.0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from headwater.theory import above, not_below

# MTGC -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """The three terms that bound the mean squared gradient norm, with unknown constants taken as 1."""

    noise: float  # √(F₀Lσ² / ÑTEH): decreases with clients, rounds and steps
    drift: float  # (F₀Lσ / T)^⅔
    start: float  # LF₀ / T

    @property
    def total(self) -> float:
        return self.noise + self.drift + self.start


def effective_clients(teams: Sequence[int]) -> float:
    """Effective number of clients, M² / Σ 1/n_j; the number of clients if all M sectors have the same size.

    The mean over sectors of the means over their n_j clients has variance (1/M²) Σ σ²/n_j. A plain mean over this many
    clients has the same variance.
    """
    if not teams or min(teams) < 1:
        raise ValueError(f"every sector must have 1 client or more, got {list(teams)}; leave out those with none")
    return len(teams) ** 2 / sum(1 / members for members in teams)


def mtgc_rate(
    gap: float, smoothness: float, variance: float, rounds: int, sector_rounds: int, steps: int, clients: float
) -> Rate:
    """The rate of MTGC for smooth losses. It does not depend on how heterogeneous clients and sectors are."""
    above(rounds=rounds, sector_rounds=sector_rounds, steps=steps, clients=clients)
    not_below(gap=gap, smoothness=smoothness, variance=variance)
    start = smoothness * gap
    return Rate(
        noise=math.sqrt(start * variance / (clients * rounds * sector_rounds * steps)),
        drift=(start * math.sqrt(variance) / rounds) ** (2 / 3),
        start=start / rounds,
    )


# FedHKD ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Knowledge:
    """The constants of FedHKD's theorems."""

    smoothness: float  # L₁
    extractor: float  # L₂
    classifier: float  # L₃
    gradient: float  # V
    variance: float  # σ²
    steps: int  # E, local steps of a round
    lr: float  # η
    prediction: float = 0.0  # λ
    feature: float = 0.0  # γ

    def __post_init__(self) -> None:
        above(smoothness=self.smoothness, steps=self.steps, lr=self.lr)
        not_below(**{f.name: getattr(self, f.name) for f in fields(self)})

    @property
    def pull(self) -> float:
        """λL₃(L₂ + 1)V + γL₂V: largest increase of the loss by the knowledge terms in a step of unit size."""
        knowledge = self.prediction * self.classifier * (self.extractor + 1) + self.feature * self.extractor
        return knowledge * self.gradient

    @property
    def spread(self) -> float:
        """EV² + σ²."""
        return self.steps * self.gradient**2 + self.variance


def fedhkd_drift(k: Knowledge) -> float:
    """Theorem 2: largest increase of the loss in a round, not counting the decrease by its gradients.

    ½η²L₁E(EV² + σ²) + 2ληL₃(L₂ + 1)EV + 2γηL₂EV
    """
    return k.lr * k.steps * (k.lr * k.smoothness * k.spread / 2 + 2 * k.pull)


def fedhkd_floor(k: Knowledge) -> float:
    """The ε at which the denominator of Theorem 3 is 0. The theorem holds only for a larger ε."""
    slope = _slope(k)
    return 2 * fedhkd_drift(k) / slope


def fedhkd_rounds(k: Knowledge, gap: float, epsilon: float) -> float:
    """Theorem 3: rounds until the mean squared gradient norm is at most ε, from a loss `gap` above the lowest.

    T = 2Δ / [εE(2η − η²L₁) − η²L₁E(EV² + σ²) − 4ληL₃(L₂ + 1)EV − 4γηL₂EV], if that denominator is positive; the last
    three parts are twice the drift of Theorem 2.
    """
    above(epsilon=epsilon)
    not_below(gap=gap)
    gain = epsilon * _slope(k) - 2 * fedhkd_drift(k)
    if not gain > 0:
        raise ValueError(
            f"no number of rounds is promised for epsilon {epsilon:g}, since drift outweighs progress down to "
            f"{fedhkd_floor(k):g}; ask for more than that, or take smaller lr, prediction and feature"
        )
    return 2 * gap / gain


def fedhkd_step_limit(k: Knowledge, gradient_norm: float, alpha: float = 1.0) -> float:
    """Corollary 1: the loss decreases in a step whose size is below this; 0 if no step size is small enough.

    [2α²‖∇L‖² − 4αλL₃(L₂ + 1)V − 4αγL₂V] / [L₁(EV² + σ² + α²‖∇L‖²)]. A misprint in the paper's denominator is corrected
    here. The step size `k.lr` is not used.
    """
    above(alpha=alpha)
    not_below(gradient_norm=gradient_norm)
    useful = (alpha * gradient_norm) ** 2
    below = k.smoothness * (k.spread + useful)
    return max(0.0, (2 * useful - 4 * alpha * k.pull) / below) if below else 0.0


def _slope(k: Knowledge) -> float:
    """E(2η − η²L₁), which is positive for η < 2 / L₁."""
    if not k.lr * k.smoothness < 2:
        raise ValueError(f"lr must be below 2 / smoothness = {2 / k.smoothness:g}, got {k.lr}; take a smaller one")
    return k.steps * (2 * k.lr - k.lr**2 * k.smoothness)


# FedDF ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Generalisation:
    """The three terms that bound the ensemble's risk on the global distribution. A sum of 1 or more is vacuous."""

    empirical: float  # the loss of the model trained on everything
    mismatch: float  # mean over clients of ½d_k + λ_k
    sampling: float  # √(ln(2K/δ) / 2m)

    @property
    def total(self) -> float:
        return self.empirical + self.mismatch + self.sampling


def feddf_generalisation(
    empirical: float, divergences: Sequence[float], joint_errors: Sequence[float], samples: int, delta: float
) -> Generalisation:
    """Theorem 5.1, with probability 1 − δ.

    d_k is the divergence of client k's data from the global distribution, λ_k the smallest joint error of one model on
    both, and m the number of samples of a client.

    >>> round(feddf_generalisation(0.05, [0.2, 0.4], [0.01, 0.03], samples=2000, delta=0.05).total, 4)
    0.2531
    """
    if len(divergences) != len(joint_errors) or not divergences:
        raise ValueError(
            f"{len(divergences)} divergences were given for {len(joint_errors)} joint errors; give one of each a client"
        )
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}")
    above(samples=samples)
    not_below(empirical=empirical, divergence=min(divergences), joint_error=min(joint_errors))
    count = len(divergences)
    return Generalisation(
        empirical=empirical,
        mismatch=sum(d / 2 + e for d, e in zip(divergences, joint_errors, strict=True)) / count,
        sampling=math.sqrt(math.log(2 * count / delta) / (2 * samples)),
    )
