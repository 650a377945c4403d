"""The tree: one server, sectors below it, clients below them.

A sector lists its clients by size, largest first, then by number. Every loop and every sum over clients follows this
order, so that long work starts first and results do not depend on which worker was free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from headwater.core.lazy_clients import Column, Index, Ints, Joined, Names
from headwater.errors import ConfigError

HEIGHTS = {"server": 2, "sectors": 1, "clients": 0}


class Place(Enum):
    """A tier of the tree: where values are stored and tasks run."""

    SERVER = "server"
    SECTORS = "sectors"
    CLIENTS = "clients"

    @property
    def height(self) -> int:
        return HEIGHTS[self.value]


SERVER, SECTORS, CLIENTS = Place.SERVER, Place.SECTORS, Place.CLIENTS
ROOT = "server"
ARCHS = ("model",)


@dataclass(frozen=True, eq=False)
class Tree:
    """Server, sectors and clients with their sizes. Clients without data stay in the tree with weight 0.

    Clients are stored as numbers in a few arrays; names and mappings over all clients are lazy, so a tree of a
    million clients is cheap.

    Args:
        sectors: names of the sectors: s0, s1, …
        index: size, sector and order of every client.
        archs: names of the architectures; clients have them in turn, by number.
    """

    sectors: tuple[str, ...]
    index: Index
    archs: tuple[str, ...] = ARCHS

    @staticmethod
    def of(sizes: Sequence[int] | Ints, sector_numbers: Sequence[int] | Ints, archs: tuple[str, ...] = ARCHS) -> Tree:
        """Build a tree of clients c0, c1, ….

        Args:
            sizes: training samples of each client.
            sector_numbers: sector of each client.
            archs: names of the architectures.
        """
        if len(sizes) != len(sector_numbers):
            raise ConfigError(f"{len(sizes)} clients were given {len(sector_numbers)} sector numbers; give one to each")
        sectors = np.asarray(sector_numbers, dtype=np.int32)
        numbers = np.unique(sectors)
        placed = np.searchsorted(numbers, sectors).astype(np.int32)
        return Tree(tuple(f"s{number}" for number in numbers.tolist()), Index.of(sizes, placed), archs)

    def with_sizes(self, sizes: Mapping[str, int]) -> Tree:
        """The same tree with other sizes of some clients; the order of clients follows."""
        lengths = self.index.sizes.copy()
        for client, size in sizes.items():
            number = self.index.number(client)
            if number is None:
                raise ConfigError(f"there is no client {client!r} in the tree")
            lengths[number] = size
        return Tree(self.sectors, Index.of(lengths, self.index.sector), self.archs)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Tree)
            and (self.sectors, self.archs) == (other.sectors, other.archs)
            and np.array_equal(self.index.sizes, other.index.sizes)
            and np.array_equal(self.index.sector, other.index.sector)
        )

    def __hash__(self) -> int:
        return hash((self.sectors, self.archs, len(self.clients)))

    def __getstate__(self) -> dict[str, Any]:
        """Without cached properties."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def arch(self, client: str) -> str:
        """The architecture that a client trains."""
        return self.archs[int(client.removeprefix("c")) % len(self.archs)]

    @cached_property
    def clients(self) -> Names:
        """All clients, in tree order."""
        return Names(self.index, self.index.order)

    @cached_property
    def holders(self) -> Names:
        """Clients that hold data, in tree order."""
        has_data = self.index.sizes[self.index.order] > 0
        return Names(self.index, self.index.order if has_data.all() else self.index.order[has_data], holding=True)

    @cached_property
    def teams(self) -> dict[str, Names]:
        """Clients that hold data, by sector; a sector without any is left out."""
        return {sector: team for at, sector in enumerate(self.sectors) if len(team := self._team(at, holding=True))}

    @cached_property
    def sector_of(self) -> Column[str]:
        """Client → sector, in tree order."""
        return Column(self.clients, self.index.sector, self.sectors)

    @cached_property
    def client_sizes(self) -> Column[int]:
        return Column(self.clients, self.index.sizes)

    @cached_property
    def holder_sizes(self) -> Column[int]:
        """Samples of clients that hold data."""
        return Column(self.holders, self.index.sizes)

    @cached_property
    def sizes(self) -> Joined[int]:
        """Samples of every node."""
        return Joined(self.tiers, self.client_sizes)

    @cached_property
    def tiers(self) -> dict[str, int]:
        """Samples of the server and of every sector."""
        sums = np.zeros(len(self.sectors), dtype=np.int64)
        np.add.at(sums, self.index.sector, self.index.sizes)
        return {ROOT: int(sums.sum())} | dict(zip(self.sectors, sums.tolist(), strict=True))

    def team(self, sector: str) -> Names:
        """The clients of a sector, also those without data."""
        return self._team(self.sectors.index(sector))

    def in_order(self, clients: Iterable[str]) -> tuple[str, ...]:
        """Some clients in tree order, each once. Takes time by their number, not by the size of the tree."""
        numbers = {number for client in clients if (number := self.index.number(client)) is not None}
        return tuple(f"c{number}" for number in sorted(numbers, key=self.index.rank.item))

    def _team(self, at: int, holding: bool = False) -> Names:
        # The clients of a sector are adjacent in `order`, those without data last.
        start, end = self._bounds[at], self._bounds[at + 1]
        members = self.index.order[start:end]
        if holding:
            members = members[: int(np.count_nonzero(self.index.sizes[members]))]
        return Names(self.index, members, at, holding)

    @cached_property
    def _bounds(self) -> list[int]:
        counts = np.bincount(self.index.sector, minlength=len(self.sectors))
        return [0, *np.cumsum(counts).tolist()]
