"""The tree: one server, sectors below it, clients below them.

A sector lists its clients by size, largest first, then by number. Every loop and every sum over clients follows this
order, so that long work is begun first and results do not depend on which worker was free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from headwater.errors import ConfigError


class Place(Enum):
    """A tier of the tree, as the place where values live."""

    SERVER = "server"
    SECTORS = "sectors"
    CLIENTS = "clients"

    @property
    def height(self) -> int:
        return {"server": 2, "sectors": 1, "clients": 0}[self.value]


SERVER, SECTORS, CLIENTS = Place.SERVER, Place.SECTORS, Place.CLIENTS
ROOT = "server"


@dataclass(frozen=True)
class Tree:
    """Parents, tiers and sizes. Clients without data stay in the tree with weight 0."""

    sectors: tuple[str, ...]
    sector_of: Mapping[str, str]  # client → sector, in tree order
    client_sizes: Mapping[str, int]
    archs: tuple[str, ...] = ("model",)  # architectures; clients have them in turn, by number

    @staticmethod
    def of(sizes: Sequence[int], sector_numbers: Sequence[int], archs: tuple[str, ...] = ("model",)) -> Tree:
        """Clients c0, c1, … with these sizes in these sectors."""
        if len(sizes) != len(sector_numbers):
            raise ConfigError(f"{len(sizes)} clients were given {len(sector_numbers)} sector numbers; give one to each")
        by_sector = sorted(range(len(sizes)), key=lambda i: (sector_numbers[i], -sizes[i], i))
        return Tree(
            tuple(f"s{number}" for number in sorted(set(sector_numbers))),
            {f"c{i}": f"s{sector_numbers[i]}" for i in by_sector},
            {f"c{i}": int(sizes[i]) for i in by_sector},
            archs,
        )

    def arch(self, client: str) -> str:
        """The architecture that a client trains."""
        return self.archs[int(client.removeprefix("c")) % len(self.archs)]

    @cached_property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.sector_of)

    @cached_property
    def holders(self) -> tuple[str, ...]:
        """The clients that hold any data, in tree order."""
        return tuple(c for c in self.clients if self.client_sizes[c] > 0)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Samples of every node."""
        return {node: self.size(node) for node in (ROOT, *self.sectors, *self.clients)}

    def size(self, node: str) -> int:
        if node == ROOT:
            return sum(self.client_sizes.values())
        if node in self.client_sizes:
            return self.client_sizes[node]
        return sum(self.client_sizes[c] for c in self.team(node))

    def share(self, node: str) -> float:
        """p_k of a client, p_m of a sector."""
        return self.sizes[node] / self.sizes[ROOT]

    def team(self, sector: str) -> tuple[str, ...]:
        return tuple(c for c, s in self.sector_of.items() if s == sector)
