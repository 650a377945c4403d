"""What a run with noise spends of a client's privacy, or of a row's, as (ε, δ) over all of its releases.

Releases without secret sampling are Gaussian mechanisms, whose composition is exact (`headwater.theory.privacy`): the
same figures that the library dp_accounting has, without its discretisation. Where a batch or a round is a secret
sample, dp_accounting adds up: privacy loss distributions (PLD) for Poisson samples, Rényi divergences (RDP) for samples
of a fixed size without replacement.

>>> round(releases_epsilon(1.0, 20, 1e-5), 2)
28.37
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from headwater.errors import ConfigError

INTERVAL = 1e-3  # of the discretised privacy loss; dp_accounting rounds up, so ε is never too small
ORDERS = (*range(2, 65), 80, 96, 128, 256, 512)  # whole ones, for which RDP of samples has a closed form


def releases_epsilon(multiplier: float, releases: int, delta: float) -> float:
    """ε of so many releases of a mean with Gaussian noise, each of which may depend on those before it.

    Args:
        multiplier: standard deviation of the noise, in units of what one client can change.
        releases: that the client was in.
        delta: δ.
    """
    from headwater.theory.privacy import gaussian_epsilon  # loads scipy

    return gaussian_epsilon(multiplier / math.sqrt(releases), delta) if releases else 0.0


@lru_cache(maxsize=4096)
def sampled_steps_epsilon(multiplier: float, probability: float, steps: int, delta: float) -> float:
    """ε of a row that is in each of so many steps with a probability of its own, by PLD (add or remove one row).

    Args:
        multiplier: standard deviation of the noise on a sum of gradients, in units of the bound on one.
        probability: that a row is in a step's batch; steps are drawn independently, and nobody else knows the batches.
        steps: number of steps.
        delta: δ.
    """
    if not steps:
        return 0.0
    if not multiplier:
        return math.inf
    if probability >= 1:
        return releases_epsilon(multiplier, steps, delta)
    library = accountant()
    account = library.pld.PLDAccountant(value_discretization_interval=INTERVAL)
    account.compose(_sampled(library, multiplier, probability), steps)
    return float(account.get_epsilon(delta))


def sampled_steps_bound(multiplier: float, probability: float, steps: int, delta: float) -> float:
    """As `sampled_steps_epsilon`, by RDP: somewhat larger, and quick for many numbers of steps."""
    if not steps:
        return 0.0
    if not multiplier:
        return math.inf
    library, one = accountant(), _renyi(multiplier, probability)
    return float(library.rdp.compute_epsilon(ORDERS, [steps * each for each in one], delta)[0])


@lru_cache(maxsize=256)
def _renyi(multiplier: float, probability: float) -> tuple[float, ...]:
    """Rényi divergences of one step at `ORDERS`."""
    library = accountant()
    account = library.rdp.RdpAccountant(ORDERS)
    account.compose(_sampled(library, multiplier, probability))
    return tuple(float(each) for each in account._rdp)


def _sampled(library: Any, multiplier: float, probability: float) -> Any:
    return library.PoissonSampledDpEvent(min(1.0, probability), library.GaussianDpEvent(multiplier))


def accountant() -> Any:
    """The library that adds up what samples spend.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ConfigError(
            "privacy.row_noise is accounted for by the package dp-accounting, which is not installed; install "
            "headwater[privacy]"
        ) from error
    return dp_accounting


def delta_of(given: float, members: int) -> float:
    """δ: as given or, for 0, the smaller of 1e-5 and one in so many members."""
    return given or min(1e-5, 1 / max(1, members))
