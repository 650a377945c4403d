"""Fixed-point numbers as 64-bit integers. Their sums modulo 2^64 are exact in any order, so masks cancel exactly.

A number v becomes round(v · 2^e). The rounding of one member is at most half a step, 2^-(e+1), so a sum of n members
differs from the true one by at most n half steps.
"""

from __future__ import annotations

import numpy as np

from headwater.errors import ConfigError

Words = np.ndarray  # of numpy.uint64


def to_words(values: np.ndarray, exponent: int) -> Words:
    """Fixed-point numbers of 64 bits, as unsigned words.

    >>> to_words(np.array([0.5, -1.0]), 2).tolist()
    [2, 18446744073709551612]
    """
    scaled = np.rint(values.astype(np.float64) * 2.0**exponent)
    if len(scaled) and not float(np.abs(scaled).max()) < 2.0**62:
        raise ConfigError(
            f"a secure sum got a value of {float(np.abs(values).max()):g}, beyond what 64 bits hold at a step of "
            f"2^-{exponent}; lower the learning rate, or raise privacy.secure_range"
        )
    return scaled.astype(np.int64).view(np.uint64)


def from_words(words: Words, exponent: int) -> np.ndarray:
    """The numbers that words stand for.

    >>> from_words(to_words(np.array([0.5, -1.0]), 2), 2).tolist()
    [0.5, -1.0]
    """
    return words.view(np.int64).astype(np.float64) / 2.0**exponent
