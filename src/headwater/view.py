"""Who is in a view of the federation, and what all views of one run share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from headwater.engines.base import Engine
from headwater.errors import PlaceError
from headwater.ledger import Ledger
from headwater.rng import Key, stream
from headwater.topology.tree import CLIENTS, ROOT, SECTORS, SERVER, Place, Tree


@dataclass
class Desk:
    """What all views of one run share: the engine, the ledger, the names in use and the counters of this round."""

    engine: Engine
    ledger: Ledger
    seed: int
    calls: Counter[str] = field(default_factory=Counter)
    submitted: Counter[tuple[int, str]] = field(default_factory=Counter)  # jobs by round and phase
    named: set[str] = field(default_factory=set)  # and not dropped yet
    opened: dict[int, list[str]] = field(default_factory=dict)  # names by round, until it is settled
    dropout: float = 0.0
    lost: set[str] = field(default_factory=set)  # homes lost in this round

    def name(self, round: int, what: str) -> str:
        """A name that depends on the program alone, so that every engine and every resumed run gives the same."""
        self.calls[""] += 1
        name = f"{round}.{self.calls['']}.{what}"
        self.named.add(name)
        self.opened.setdefault(round, []).append(name)
        return name

    def release(self, kept: set[str]) -> None:
        """Drop all names but these. Nothing waits: what was submitted already still gets its inputs."""
        self.engine.drop(self.named - kept)
        self.named &= kept

    def settle(self, until: int) -> None:
        """See that rounds up to this one are done, and close their rows of the ledger. Waits."""
        due = [round for round in self.opened if round <= until]
        infos = self.engine.finish([name for round in due for name in self.opened.pop(round)])
        self.ledger.settle(infos, until)
        for key in [key for key in self.submitted if key[0] <= until]:
            del self.submitted[key]


@dataclass(frozen=True)
class View:
    """Some of the clients, who sits for their sectors, the round and its purpose. Free, immutable, never a copy."""

    tree: Tree
    desk: Desk
    clients: tuple[str, ...]
    round: int = 0
    purpose: str = "train"
    seats: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def teams(self) -> dict[str, list[str]]:
        """The clients of each sector; a sector without clients is not in the view."""
        teams: dict[str, list[str]] = {}
        for client in self.clients:
            teams.setdefault(self.tree.sector_of[client], []).append(client)
        return {sector: teams[sector] for sector in self.tree.sectors if sector in teams}

    @property
    def sectors(self) -> tuple[str, ...]:
        return tuple(self.teams)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Samples registered at each node of the view, for rules that act before training."""
        own = {client: self.tree.sizes[client] for client in self.clients}
        return own | {s: sum(own[c] for c in team) for s, team in self.teams.items()} | {ROOT: sum(own.values())}

    @property
    def whole(self) -> Self:
        """Everybody registered who holds data."""
        return replace(self, clients=self.tree.holders)

    def among(self, clients: Iterable[str]) -> Self:
        wanted = set(clients)
        unknown = wanted - set(self.tree.clients)
        if unknown:
            raise PlaceError(f"there is no client {min(unknown)!r} in the tree; among() takes names of clients")
        return replace(self, clients=tuple(c for c in self.tree.holders if c in wanted))

    def seat(self, seats: Mapping[str, str]) -> Self:
        """Let a client act as its sector: the sector's home is then that client."""
        for sector, client in seats.items():
            if client not in self.clients:
                raise PlaceError(f"{client!r} cannot lead {sector!r}: it does not take part; choose among fed.clients")
            if self.tree.sector_of[client] != sector:
                raise PlaceError(f"{client!r} cannot lead {sector!r}: it belongs to {self.tree.sector_of[client]!r}")
        return replace(self, seats=dict(self.seats) | dict(seats))

    def unseat(self) -> Self:
        return replace(self, seats={})

    def with_purpose(self, purpose: str) -> Self:
        return replace(self, purpose=purpose)

    def nodes(self, place: Place) -> tuple[str, ...]:
        return {SERVER: (ROOT,), SECTORS: self.sectors, CLIENTS: self.clients}[place]

    def home(self, node: str) -> str:
        return self.seats.get(node, node)

    def role(self, node: str) -> str:
        if node == ROOT:
            return "server"
        return "client" if node in self.tree.sector_of else "leader" if node in self.seats else "sector"

    def rng(self, purpose: str, *keys: Key) -> np.random.Generator:
        return stream(self.desk.seed, purpose, self.round, *keys)
