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
from headwater.theory import costs_corrections, costs_distillation, costs_ensembles, costs_knowledge, costs_nets
from headwater.theory.traffic import (
    FLAT,
    NUMBER,
    Active,
    Formula,
    Link,
    Options,
    Payload,
    Traffic,
    averaged,
    examples_bytes,
    flat,
    model_bytes,
    models,
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


def _led(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Twice to the leaders and back; inside a sector everybody but the leader, who has nothing to send to itself."""
    members = who.clients - who.sectors
    long, inside = models(sizes, 2 * who.sectors, 2 * who.sectors), models(sizes, members, members)
    if "labels" in (options.get("weights"), options.get("server_weights")):
        inside += Link(up_bytes=members * sizes.label_counts)
    if options.get("server_weights") == "labels":  # their sums go on
        long += Link(up_bytes=who.sectors * sizes.label_counts)
    return Traffic(long, inside)


def _hold_out(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The validation set, relayed by sectors to every client."""
    if options.get("val_source", "server") != "server":
        return Traffic()
    sent = (who.sectors * sizes.validation, who.clients * sizes.validation)
    return Traffic(Link(down_bytes=sent[0]), Link(down_bytes=sent[1]))


def _pooling(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Every row of every client, straight to the server."""
    link = Link(up_bytes=sizes.rows)
    return Traffic(link, link)


def _start(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The starting model, straight to every client."""
    link = Link(down_bytes=who.clients * sizes.model, down_models=who.clients)
    return Traffic(link, link)


def _silent(who: Active, sizes: Payload, options: Options) -> Traffic:
    return Traffic()


# One row a method. `options` are the method's own fields, `weights` and `server_weights` the teachers' weights.
FORMULAS: dict[str, Formula] = {
    "fedavg": Formula(FLAT, flat),
    "hfedavg": Formula("M, M | E·N, E·N", averaged),
    "fedhead": Formula("2M, 2M | N − M, N − M", _led, _hold_out),
    "fedhead+": Formula("2M, 2M | N − M, N − M", _led, _hold_out),
    "centralized": Formula("none (before: every row, on both links)", _silent, _pooling),
    "local": Formula("none (before: 0, N | 0, N)", _silent, _start),
    **costs_corrections.FORMULAS,
    **costs_distillation.FORMULAS,
    **costs_ensembles.FORMULAS,
    **costs_knowledge.FORMULAS,
    **costs_nets.FORMULAS,
}


def formula(method: str) -> Formula:
    if method not in FORMULAS:
        raise ConfigError(
            f"there is no cost formula for method {method!r}{nearest(method, FORMULAS)} (known: {', '.join(FORMULAS)})"
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
