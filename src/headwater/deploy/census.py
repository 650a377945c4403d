"""How many rows each client of a run has: the server asks for it once, and announces it in every message.

All parties need it to derive what the method does, so it is checked against what they know themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from headwater.deploy.agreement import Agreement
from headwater.deploy.payload import Refused

MAX_ROWS = 1 << 40  # of a client


def is_row_count(size: Any) -> TypeGuard[int]:
    """Whether a received value can be a number of rows."""
    return type(size) is int and 0 <= size <= MAX_ROWS


def read_census(head: Mapping[str, Any], agreement: Agreement) -> dict[str, int]:
    """The number of rows by client that a message announces.

    Raises:
        Refused: it announces none, or that of a client which is not in the federation.
    """
    census = head.get("census")
    if not (isinstance(census, dict) and census and all(map(is_row_count, census.values()))):
        raise Refused("it does not say how many rows each client has")
    if unknown := sorted(set(census) - agreement.sector_of.keys()):
        raise Refused(f"it speaks of {unknown[0]!r:.40}, which is no client of this federation")
    return dict(census)


def agrees(census: Mapping[str, int], known: Mapping[str, int]) -> None:
    """Raise Refused if a client has another number of rows than is known here."""
    for name, rows in known.items():
        if census.get(name, rows) != rows:
            raise Refused(f"it says that {name} has {census[name]} rows, and it has {rows}")
