"""Differential privacy of FedHKD's noise on class representations: what it guarantees, and what it does not.

A client sends the mean representation of each class it holds enough of, every coordinate clipped to ±ζ before the mean
and with Gaussian noise of standard deviation S·σ after it. Replacing one of the N samples of a class moves a
coordinate of the mean by at most S = 2ζ/N, so σ is the noise in units of what one sample can do: its *multiplier*.

* The classic rule for σ holds below ε = 1 only. Balle and Wang (Improving the Gaussian Mechanism for Differential
  Privacy, ICML 2018) give δ exactly for every ε; all figures but `sigma_min` come from their formula.
* S is per coordinate. One sample can move all d coordinates at once, so for the whole vector the multiplier is σ/√d,
  unless S itself is taken with √d (`dp_sensitivity="l2"`).
* A sample belongs to one class and is in one release a round. k releases with multiplier σ are together one with
  multiplier σ/√k, exactly; this holds for releases that were chosen in view of earlier ones too.
* Two data sets are neighbours here if one sample is replaced by another of the same class: class counts stay as they
  are and count as public (S and the sharing threshold use them).
* 2ζ/N is the effect on the mean *through one extractor*. The client trained that extractor on the same samples, and
  sends it without noise: the figures are for the extractor given, and no run as a whole has a finite ε.

>>> round(sigma_min(0.5, 0.01), 4)
6.215
>>> spent(7.0, releases=1, delta=0.01, dimension=1).epsilon < 0.5
True
>>> print(spent(7.0, releases=50, delta=0.01, dimension=64).sentence())  # doctest: +ELLIPSIS
Representations only: ε = 50.58 at δ = 0.01 for 50 releases of a mean of 64 coordinates (replace-one; class counts ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

Sensitivity = Literal["per_coordinate", "l2"]


def sigma_min(epsilon: float, delta: float) -> float:
    """The multiplier that the classic theorem asks for: √(2 ln(5/(4δ))) / ε, for ε below 1."""
    _check_delta(delta)
    if not 0 < epsilon < 1:
        raise ValueError(
            f"the classic Gaussian mechanism holds for epsilon above 0 and below 1, got {epsilon}; "
            "use gaussian_sigma, the analytic one, for any other"
        )
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """The exact δ of one release: Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ).

    The two terms may be tiny and nearly equal. Since both densities differ by the factor e^ε, they share a factor
    e^(−a²/2), which is taken out where that helps.
    """
    _check_sigma(sigma)
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be 0 or more, got {epsilon}")
    if epsilon == math.inf:
        return 0.0
    if sigma == 0:
        return 1.0
    a, b = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
    common, second = 0.5 * math.exp(-a * a / 2), float(erfcx(-b / math.sqrt(2)))
    if a > 0:
        return float(ndtr(a)) - common * second
    return common * (float(erfcx(-a / math.sqrt(2))) - second)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The smallest ε of one release with this multiplier at this δ; infinite without noise."""
    _check_sigma(sigma)
    _check_delta(delta)
    if sigma == 0:
        return math.inf
    if gaussian_delta(0.0, sigma) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, sigma) > delta:
        high *= 2
    return _root(lambda epsilon: gaussian_delta(epsilon, sigma) - delta, 0.0, high) if high < math.inf else high


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The smallest multiplier whose release is (ε, δ)-private, for any ε from 0 up."""
    _check_delta(delta)
    low = high = 1.0
    while gaussian_delta(epsilon, high) > delta:
        high *= 2
    while gaussian_delta(epsilon, low) < delta:
        low /= 2
    return _root(lambda sigma: gaussian_delta(epsilon, sigma) - delta, low, high)


def sensitivity(bound: float, count: int, dimension: int = 1, dp_sensitivity: Sensitivity = "per_coordinate") -> float:
    """S: how far one of `count` samples, clipped to ±bound, moves a coordinate of their mean, or the vector ("l2")."""
    if not 0 < bound < math.inf:
        raise ValueError(f"the bound on a coordinate must be above 0 and finite, got {bound}; clip before the mean")
    if count < 2:
        raise ValueError(f"a class mean hides a sample among 2 or more, got a class of {count}; do not share it")
    return 2 * bound / count * (math.sqrt(dimension) if _whole(dp_sensitivity, dimension) else 1.0)


def noise_variance(sigma: float, sensitivity: float) -> float:
    """(Sσ)², of the noise on one coordinate of one client's mean.

    >>> round(noise_variance(7, sensitivity(3, 256)), 6)
    0.026917
    """
    _check_sigma(sigma)
    return (sigma * sensitivity) ** 2


def aggregated_variance(sigma: float, weights: Sequence[float], sensitivities: Sequence[float]) -> float:
    """σ² Σ a_i² S_i², of the noise on one coordinate after the server's weighted mean (the paper leaves out a_i²).

    With a_i = N_i/N and S_i = 2ζ/N_i it is m·σ²(2ζ/N)² for m sharers, whatever their counts.
    """
    if len(weights) != len(sensitivities):
        raise ValueError(f"{len(weights)} weights were given for {len(sensitivities)} sensitivities; give one for each")
    return sum(a * a * noise_variance(sigma, s) for a, s in zip(weights, sensitivities, strict=True))


def least_count(threshold: float, samples: int) -> int:
    """The fewest samples of a class with which a client of so many samples shares it: count/samples ≥ ν.

    >>> least_count(0.25, 1024)
    256
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"the sharing threshold must be from 0 to 1, got {threshold}")
    if samples < 1:
        raise ValueError(f"a client that shares must hold 1 sample or more, got {samples}")
    near = math.floor(threshold * samples)  # a product just off a whole number must not move the answer
    return next(count for count in range(max(0, near - 1), near + 3) if count / samples >= threshold)


@dataclass(frozen=True)
class Spent:
    """The (ε, δ) of all releases that one sample was in, and the conditions under which it holds."""

    epsilon: float
    delta: float
    releases: int
    sigma: float  # the noise of a release, in units of S
    dimension: int
    dp_sensitivity: Sensitivity
    multiplier: float  # of all releases and coordinates together
    basic: float  # ε by adding up, for comparison: k releases of (ε/k, δ/k) each
    single: float  # ε of one coordinate of one release, which is what the paper's σ is chosen by
    covers: str = "representations only"
    adjacency: str = "replace-one; class counts public"
    given: str = "extractor held fixed"

    def sentence(self) -> str:
        """What holds, under which terms, and what was left open."""
        times = f"{self.releases} release{'' if self.releases == 1 else 's'} of a mean of {self.dimension} coordinate"
        times += "" if self.dimension == 1 else "s"
        if self.releases == 0:
            return (
                f"{self.covers.capitalize()}: nothing was released, and with it no soft prediction and no class count. "
                "Models go out without noise, so the run as a whole has no finite ε."
            )
        if self.epsilon == math.inf:
            found = f"no finite ε for {times} with a noise multiplier of {self.sigma:g}"
        else:
            found = f"ε = {self.epsilon:.4g} at δ = {self.delta:g} for {times}"
        return (
            f"{self.covers.capitalize()}: {found} ({self.adjacency}; {self.given}). Soft predictions, class counts and "
            "the model go out without noise, so the run as a whole has no finite ε."
        )


def spent(
    sigma: float, releases: int, delta: float, dimension: int, dp_sensitivity: Sensitivity = "per_coordinate"
) -> Spent:
    """What all releases together cost: one a round in which the client took part and shared the sample's class."""
    _check_sigma(sigma)
    _check_delta(delta)
    if releases < 0:
        raise ValueError(f"the number of releases must be 0 or more, got {releases}")
    vector = sigma if _whole(dp_sensitivity, dimension) else sigma / math.sqrt(dimension)
    coordinate = vector * math.sqrt(dimension)
    together = vector / math.sqrt(releases) if releases else math.inf
    return Spent(
        epsilon=gaussian_epsilon(together, delta) if releases else 0.0,
        delta=delta if releases else 0.0,
        releases=releases,
        sigma=sigma,
        dimension=dimension,
        dp_sensitivity=dp_sensitivity,
        multiplier=together,
        basic=releases * gaussian_epsilon(vector, delta / releases) if releases else 0.0,
        single=gaussian_epsilon(coordinate, delta) if releases else 0.0,
    )


def _whole(dp_sensitivity: str, dimension: int) -> bool:
    """Whether S is for the whole vector."""
    if dimension < 1:
        raise ValueError(f"a representation has 1 coordinate or more, got {dimension}")
    if dp_sensitivity not in ("per_coordinate", "l2"):
        raise ValueError(f'dp_sensitivity must be "per_coordinate" or "l2", got {dp_sensitivity!r}')
    return dp_sensitivity == "l2"


def _check_sigma(sigma: float) -> None:
    if not 0 <= sigma < math.inf:
        raise ValueError(f"the noise multiplier sigma must be 0 or more and finite, got {sigma}")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}")


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-14, rtol=1e-14))
