"""What a method sends, in closed form: models, bytes and round trips on both links, for a round and for a run.

N is the number of active clients and M the number of sectors that have any. A value that goes straight from the server
to a client crosses both links, so a method that does not use sectors pays N on each; a sector that receives a value
itself can relay or average it, and then the long link carries M.

>>> whole = Active((3, 2))
>>> run_traffic("fedhead", [whole] * 10, Payload(model=1000)).server_sector.round_trips
40
>>> run_traffic("feddf", [whole] * 10, Payload(model=1000)).server_sector.round_trips
50
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.errors import ConfigError, nearest
from headwater.theory import costs_knowledge, costs_models
from headwater.theory.traffic import (
    NUMBER,
    Active,
    Formula,
    Link,
    Options,
    Payload,
    Traffic,
    examples_bytes,
    model_bytes,
)

__all__ = [
    "FORMULAS",
    "NUMBER",
    "Active",
    "Formula",
    "Link",
    "Payload",
    "Traffic",
    "examples_bytes",
    "formula",
    "model_bytes",
    "round_traffic",
    "run_traffic",
    "setup_traffic",
]


FORMULAS: dict[str, Formula] = {
    **costs_models.FORMULAS,
    **costs_knowledge.FORMULAS,
    **costs_models.INSIDE_THE_NETWORK,
}


def formula(method: str) -> Formula:
    if method not in FORMULAS:
        raise ConfigError(
            f"there is no cost formula for method {method!r}{nearest(method, FORMULAS)} "
            f"(known: {', '.join(FORMULAS)}); `headwater plan` counts the bytes of any method"
        )
    return FORMULAS[method]


def round_traffic(method: str, who: Active, sizes: Payload, options: Options | None = None) -> Traffic:
    """What one round of a method moves when these clients take part."""
    return formula(method).round(who, sizes, options or {})


def setup_traffic(method: str, everybody: Active, sizes: Payload, options: Options | None = None) -> Traffic:
    """What a method moves before its first round, when everybody who holds data is there."""
    return formula(method).setup(everybody, sizes, options or {})


def run_traffic(method: str, rounds: Iterable[Active], sizes: Payload, options: Options | None = None) -> Traffic:
    """A whole run without its setup: the sum over rounds of whoever took part in each."""
    numbered = enumerate(rounds, 1)
    return sum((round_traffic(method, who, sizes, {"round": n, **(options or {})}) for n, who in numbered), Traffic())
