"""Statistics of results: confidence intervals, weighted means and busy times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headwater.core.rng import stream

Interval = tuple[float, float]
Z95 = 1.959963984540054
T95 = {199: 1.9719565442517533}  # for 200 resamples, which every run needs: avoids importing scipy


def ordinary_interval(correct: int, total: int) -> Interval:
    """Wilson's 95 % interval of an accuracy on a test set of `total` samples."""
    if total == 0:
        return (0.0, 1.0)
    share, z2 = correct / total, Z95**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return (max(0.0, middle - half), min(1.0, middle + half))


def bootstrap_mean_interval(correct: Sequence[bool], seed: int, resamples: int = 200) -> Interval:
    """95 % t interval of the mean over bootstrap resamples, as in FedHEAD's tables.

    It narrows with the number of resamples and does not cover the variation of seeds or training. It is computed only
    for comparison with these tables.
    """
    hits = np.asarray(correct, dtype=np.uint8)
    draws = stream(seed, "bootstrap").integers(0, len(hits), size=(resamples, len(hits)))
    means = np.count_nonzero(hits[draws], axis=1) / len(hits)
    middle, half = float(means.mean()), t_value(resamples - 1) * float(means.std(ddof=1)) / math.sqrt(resamples)
    return (middle - half, middle + half)


def t_value(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t."""
    if freedom in T95:
        return T95[freedom]
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half width of the 95 % t interval; None for a single value."""
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) < 2:
        return float(numbers.mean()), None
    return float(numbers.mean()), t_value(len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))


def weighted(values: Mapping[str, float], weights: Mapping[str, int]) -> float:
    total = sum(weights[node] for node in values)
    return sum(values[node] * weights[node] for node in values) / total


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds during which at least one span was open."""
    seconds, until = 0.0, -math.inf
    for start, end in sorted(spans):
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return seconds
