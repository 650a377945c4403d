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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from headwater.errors import ConfigError, nearest
from headwater.topology.tree import Tree

NUMBER = 8  # bytes of a number on its own, of a label and of a count


@dataclass(frozen=True)
class Active:
    """How many clients take part in each sector; a sector with none stays out."""

    teams: tuple[int, ...]

    @staticmethod
    def of(tree: Tree, clients: Iterable[str] | None = None) -> Active:
        """These clients of a tree, or all that hold data."""
        chosen = set(tree.holders if clients is None else clients) & set(tree.holders)
        return Active(tuple(sum(tree.sector_of[c] == sector for c in chosen) for sector in tree.sectors))

    @property
    def clients(self) -> int:
        return sum(self.teams)

    @property
    def sectors(self) -> int:
        return sum(members > 0 for members in self.teams)


@dataclass(frozen=True)
class Payload:
    """The sizes in bytes of what can travel."""

    model: int
    validation: int = 0  # the labelled hold-out at the server
    rows: int = 0  # the training rows of all clients together
    classes: int = 0

    @property
    def label_counts(self) -> int:
        return NUMBER * self.classes


def model_bytes(parameters: int, float_buffers: int = 0, counters: int = 0, width: int = 4) -> int:
    """A model on the wire. Batch-norm statistics travel as wide as parameters; a batch counter takes 8 bytes."""
    return width * (parameters + float_buffers) + NUMBER * counters


def examples_bytes(rows: int, numbers: int, width: int = 4) -> int:
    """Labelled examples of so many numbers each."""
    return rows * (width * numbers + NUMBER)


@dataclass(frozen=True)
class Link:
    """What one tier carries."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_models: int = 0
    down_models: int = 0
    round_trips: int = 0

    def __add__(self, other: Link) -> Link:
        return Link(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Link)))

    @property
    def bytes(self) -> int:
        return self.up_bytes + self.down_bytes


@dataclass(frozen=True)
class Traffic:
    """Both tiers: the long link between server and sectors, and the links inside sectors."""

    server_sector: Link = Link()
    sector_client: Link = Link()

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.server_sector + other.server_sector, self.sector_client + other.sector_client)


Options = Mapping[str, Any]
Part = Callable[[Active, Payload, Options], Traffic]


@dataclass(frozen=True)
class Formula:
    """One method's row: what it sends in a round, and before the first one."""

    models: str  # long link up, down | inside sectors up, down; for people to read
    round: Part
    setup: Part = lambda who, sizes, options: Traffic()


def _models(sizes: Payload, up: int, down: int) -> Link:
    """Models up and down; whoever was sent one answers with one."""
    return Link(sizes.model * up, sizes.model * down, up, down, min(up, down))


def _straight(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Server to client and back, the sector being a wire."""
    link = _models(sizes, who.clients, who.clients)
    return Traffic(link, link)


def _averaged(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Sectors average their clients E times, then the server averages sectors."""
    inside = int(options.get("sector_rounds", 1)) * who.clients
    return Traffic(_models(sizes, who.sectors, who.sectors), _models(sizes, inside, inside))


def _fedavg(who: Active, sizes: Payload, options: Options) -> Traffic:
    return (_averaged if options.get("through_sectors") else _straight)(who, sizes, options)


def _led(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Twice to the leaders and back; inside a sector everybody but the leader, who has nothing to send to itself."""
    members = who.clients - who.sectors
    inside = _models(sizes, members, members)
    if options.get("weights") == "labels":
        inside += Link(up_bytes=members * sizes.label_counts)
    return Traffic(_models(sizes, 2 * who.sectors, 2 * who.sectors), inside)


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


# One row a method. `options` are the method's own fields, and `weights` the teachers' weights at sectors.
FORMULAS: dict[str, Formula] = {
    "fedavg": Formula("N, N | N, N (through sectors M, M | N, N)", _fedavg),
    "hfedavg": Formula("M, M | E·N, E·N", _averaged),
    "feddf": Formula("N, N | N, N", _straight),
    "fedhead": Formula("2M, 2M | N − M, N − M", _led, _hold_out),
    "fedhead+": Formula("2M, 2M | N − M, N − M", _led, _hold_out),
    "centralized": Formula("none (before: every row, on both links)", _silent, _pooling),
    "local": Formula("none (before: 0, N | 0, N)", _silent, _start),
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
    return sum((round_traffic(method, who, sizes, options) for who in rounds), Traffic())
