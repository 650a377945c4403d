"""Who is in a view of the federation, and what all views of one run share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Self

import numpy as np

from headwater.core.lazy_clients import Joined
from headwater.core.ledger import Ledger
from headwater.core.precompute import Precompute
from headwater.core.rng import Key, stream
from headwater.core.tree import CLIENTS, ROOT, SECTORS, Place, Tree
from headwater.engines.base import Engine, Job
from headwater.errors import PlaceError


@dataclass
class Session:
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
    width: int = 1  # clients whose models are computed as one stack, at most
    rows: int = 0  # that clients train on in one job where they are not stacked; 0: each has a job of its own
    small: int = 1 << 30  # clients in such a job, at most
    fanout: Precompute = field(default_factory=Precompute)  # which passes are jobs of their own

    @property
    def losing(self) -> bool:
        """Whether homes are parties of their own, who may be lost at any time."""
        return getattr(self.engine, "losing", False)

    def groups(self, task: Any, nodes: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Sequence[str]]:
        """Nodes whose jobs are carried out as one: a function of the configuration and of who takes part alone."""
        width = 1
        if nodes and not self.losing and getattr(task, "together", None) is not None:
            width = self.width if task.stacked else len(nodes)
            if task.stacked and width == 1:
                rows = max(1, sum(sizes[node] for node in nodes))
                width = max(1, min(self.small, self.rows * len(nodes) // rows))
        count = math.ceil(len(nodes) / width)
        for at in range(count):
            yield nodes[at * len(nodes) // count : (at + 1) * len(nodes) // count]

    def submit(self, round: int, jobs: Sequence[Job]) -> None:
        """The jobs of one run of a task; those that have one name are carried out as one."""
        for _, group in groupby(jobs, key=lambda job: job.name):
            self.engine.submit(*group)
        if jobs:
            self.submitted[round, jobs[0].phase] += len(jobs)

    def name(self, round: int, what: str) -> str:
        """A name that depends on the program alone, so that every engine and every resumed run gives the same."""
        self.calls[""] = count = self.calls[""] + 1
        name = f"{round}.{count}.{what}"
        self.named.add(name)
        self.opened.setdefault(round, []).append(name)
        return name

    def release(self, kept: Mapping[str, Collection[str]]) -> None:
        """Drop all names but these, and all members of groups but these. Nothing waits: what was submitted already
        still gets its inputs."""
        self.engine.drop(self.named - kept.keys())
        self.named &= kept.keys()
        if groups := {name: members for name, members in kept.items() if members}:
            self.engine.trim(groups)
        self.fanout.asked.clear()

    def settle(self, until: int) -> None:
        """See that rounds up to this one are done, and close their rows of the ledger. Waits."""
        due = [round for round in self.opened if round <= until]
        infos = self.engine.finish([name for round in due for name in self.opened.pop(round)])
        self.ledger.settle(infos, until)
        for key in [key for key in self.submitted if key[0] <= until]:
            del self.submitted[key]


@dataclass(frozen=True)
class View:
    """Some of the clients, who sits for their sectors, the round and its purpose. Free, immutable, never a copy.

    In a view of everybody the clients are those of the tree, which are not written out unless somebody goes through
    them all.
    """

    tree: Tree
    session: Session
    clients: Sequence[str]
    round: int = 0
    purpose: str = "train"
    seats: Mapping[str, str] = field(default_factory=dict)
    sat: frozenset[str] = frozenset()  # who has led in this round

    @property
    def losing(self) -> bool:
        """Whether clients are parties of their own, who may be lost at any time."""
        return self.session.losing

    @cached_property
    def teams(self) -> Mapping[str, Sequence[str]]:
        """The clients of each sector; a sector without clients is not in the view."""
        if self.clients is self.tree.holders:
            return self.tree.teams
        teams: dict[str, list[str]] = {}
        for client in self.clients:
            teams.setdefault(self.tree.sector_of[client], []).append(client)
        return {sector: teams[sector] for sector in self.tree.sectors if sector in teams}

    @property
    def sectors(self) -> tuple[str, ...]:
        return tuple(self.teams)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Samples registered at each node of the view, for rules that act before training."""
        if self.clients is self.tree.holders:
            return Joined(self.tree.holder_sizes, {node: self.tree.sizes[node] for node in (*self.sectors, ROOT)})
        own = {client: self.tree.sizes[client] for client in self.clients}
        return own | {s: sum(own[c] for c in team) for s, team in self.teams.items()} | {ROOT: sum(own.values())}

    @property
    def whole(self) -> Self:
        """Everybody registered who holds data."""
        return replace(self, clients=self.tree.holders)

    def among(self, clients: Iterable[str]) -> Self:
        if clients is self.tree.holders:
            return self.whole
        wanted = set(clients)
        unknown = {client for client in wanted if client not in self.tree.clients}
        if unknown:
            raise PlaceError(f"there is no client {min(unknown)!r} in the tree; among() takes names of clients")
        return replace(self, clients=self.tree.in_order(client for client in wanted if client in self.tree.holders))

    def seat(self, seats: Mapping[str, str]) -> Self:
        """Let a client act as its sector: the sector's home is then that client."""
        for sector, client in seats.items():
            if client not in self.clients:
                raise PlaceError(f"{client!r} cannot lead {sector!r}: it does not take part; choose among fed.clients")
            if self.tree.sector_of[client] != sector:
                raise PlaceError(f"{client!r} cannot lead {sector!r}: it belongs to {self.tree.sector_of[client]!r}")
        return replace(self, seats=dict(self.seats) | dict(seats), sat=self.sat.union(seats.values()))

    def unseat(self) -> Self:
        return replace(self, seats={})

    def with_purpose(self, purpose: str) -> Self:
        return replace(self, purpose=purpose)

    def nodes(self, place: Place) -> Sequence[str]:
        if place is CLIENTS:
            return self.clients
        return self.sectors if place is SECTORS else (ROOT,)

    def nodes_of(self, place: Place, held: Mapping[str, object]) -> Sequence[str]:
        """The nodes at a place that hold something, in tree order; where few of all clients do, at the cost of few."""
        if place is CLIENTS and self.clients is self.tree.holders and len(held) < len(self.clients):
            return self.tree.in_order(client for client in held if client in self.clients)
        return [node for node in self.nodes(place) if node in held]

    def home(self, node: str) -> str:
        return self.seats.get(node, node)

    def role(self, node: str) -> str:
        if node == ROOT:
            return "server"
        return "client" if node in self.tree.sector_of else "leader" if node in self.seats else "sector"

    def rng(self, purpose: str, *keys: Key) -> np.random.Generator:
        return stream(self.session.seed, purpose, self.round, *keys)
