"""What can travel and over which link: the words in which a method's cost is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.core.tree import Tree

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
    features: int = 0  # bytes of one representation
    reference: int = 0  # the labelled public set
    align: int = 0  # rows of the public set that clients predict in a round
    generator: int = 0  # a generator of features
    frozen: int = 0  # what is frozen in the model, which is not in `model`

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


# The method's own fields, with the round's number and, where traffic depends on it, who holds and who did what.
Options = Mapping[str, Any]
Part = Callable[[Active, Payload, Options], Traffic]


@dataclass(frozen=True)
class Formula:
    """One method's row: what it sends in a round, and before the first one."""

    models: str  # long link up, down | inside sectors up, down; for people to read
    round: Part
    setup: Part = lambda who, sizes, options: Traffic()


def models(sizes: Payload, up: int, down: int, trips: int | None = None) -> Link:
    """Models up and down; unless told, whoever was sent one answers with one."""
    return Link(sizes.model * up, sizes.model * down, up, down, min(up, down) if trips is None else trips)


def start_at_clients(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The starting model, straight to every client."""
    link = models(sizes, 0, who.clients)
    return Traffic(link, link)


def straight(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Server to client and back, the sector being a wire."""
    link = models(sizes, who.clients, who.clients)
    return Traffic(link, link)


def averaged(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Sectors average their clients E times, then the server averages sectors."""
    inside = int(options.get("sector_rounds", 1)) * who.clients
    return Traffic(models(sizes, who.sectors, who.sectors), models(sizes, inside, inside))


def flat(who: Active, sizes: Payload, options: Options) -> Traffic:
    """One model each way, straight or by way of sectors."""
    return (averaged if options.get("through_sectors") else straight)(who, sizes, options)


FLAT = "N, N | N, N (through sectors M, M | N, N)"
