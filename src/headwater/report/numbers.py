"""Number formatting: percentages, sizes, durations, and round ticks for axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

NBSP = "\u00a0"  # between a number and its unit, to prevent a line break
NONE = "–"
_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def number(value: Any) -> float | None:
    """The value as a float if it is a finite number, else None (null, NaN, text)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond the range of floats
        return None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None if there are none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None  # `statistics` is slow to import


def percent(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{100 * value:.{digits}f}{NBSP}%"


def count(value: float | None) -> str:
    """A number with thin spaces between thousands; one decimal if it is not whole."""
    if value is None:
        return NONE
    text = f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"
    return text.replace(",", "\u202f")


def size(value: float | None) -> str:
    """Bytes in decimal units with three digits: 950 B, 12.3 kB, 4.56 GB."""
    if value is None:
        return NONE
    unit, scale = size_unit(value)
    return f"{value:.0f}{NBSP}B" if scale == 1 else f"{_three(value / scale)}{NBSP}{unit}"


def size_unit(largest: float) -> tuple[str, float]:
    """Name and factor of the unit in which this size has one to three digits before the point."""
    # The next unit starts a little early: 999.9 kB would be printed as "1000 kB".
    return next(((unit, scale) for unit, scale in _SIZES if abs(largest) >= 0.9995 * scale), _SIZES[-1])


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f}{NBSP}s" if seconds >= 0.95 else f"{seconds:.2f}{NBSP}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{NBSP}min{NBSP}{rest:02d}{NBSP}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}{NBSP}h{NBSP}{minutes:02d}{NBSP}min"


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
