"""What should happen, as formulas: bytes on every link, published bounds, and how unlike the clients are.

Nothing here looks at a run. The ledger says what did move, and the tests hold the two against each other.
"""

from __future__ import annotations

import math


def above(**values: float) -> None:
    """Refuse values that are not above 0 and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0 and finite, got {value}")


def not_below(**values: float) -> None:
    """Refuse values that are negative or not finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be 0 or more and finite, got {value}")
