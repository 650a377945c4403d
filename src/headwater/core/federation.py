"""The view of the federation that a method works with.

Every value is stored at one node, its home. `run` computes at a home with the values stored there. Only `up`, `down`
and `hand` change a value's home, and only they are charged to the ledger. A method holds `Located` handles, never
values; only values at the server can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from headwater.core import moves, secure_sums, submission
from headwater.core.lazy_clients import Joined
from headwater.core.ledger import Path
from headwater.core.rng import Key, stream
from headwater.core.session import Session
from headwater.core.tree import CLIENTS, ROOT, SECTORS, SERVER, Place, Tree
from headwater.core.values import Located, each, maybe, names_in, nothing
from headwater.engines.jobs import LOST, Ref, field_names, rebuilt
from headwater.engines.refs import fetched
from headwater.errors import PlaceError

__all__ = ["CLIENTS", "SECTORS", "SERVER", "Federation", "Located", "Session", "each", "maybe", "nothing"]


@dataclass(frozen=True)
class Federation:
    """A view of the tree: some of its clients, their leaders, the round and its purpose.

    Views are immutable and cheap: `seat`, `among` and the like return a new one. In a view of all clients, `clients` is
    the tree's own lazy sequence. It is expanded only by iteration.

    Args:
        tree: server, sectors and clients.
        session: state shared by all views of the run.
        clients: clients in this view, in tree order.
        round: number of the round; 0 is the set-up before the first.
        purpose: what moves are charged to: train, setup, evaluate or export.
        seats: sector → client that leads it.
        sat: clients that have led in this round.
        steps_before: (section, node) → steps of the run before the node's training, where a stage counts them all.
            ("", "") has those before the round, ("local", "") those of one sector round if there are several.
        led: sector → the client that was seated there last in this round; all views of the round share and fill it.
    """

    tree: Tree
    session: Session
    clients: Sequence[str]
    round: int = 0
    purpose: str = "train"
    seats: Mapping[str, str] = field(default_factory=dict)
    sat: frozenset[str] = frozenset()
    steps_before: Mapping[tuple[str, str], int] = field(default_factory=dict)
    led: dict[str, str] = field(default_factory=dict, compare=False)

    # -- who is in the view

    @property
    def losing(self) -> bool:
        """True if clients are separate parties that may be lost at any time."""
        return self.session.losing

    @cached_property
    def teams(self) -> Mapping[str, Sequence[str]]:
        """Clients by sector. A sector without clients is not in the view."""
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
        """Training samples by node, for rules that act before training."""
        if self.clients is self.tree.holders:
            return Joined(self.tree.holder_sizes, {node: self.tree.sizes[node] for node in (*self.sectors, ROOT)})
        own = {client: self.tree.sizes[client] for client in self.clients}
        return own | {s: sum(own[c] for c in team) for s, team in self.teams.items()} | {ROOT: sum(own.values())}

    @property
    def whole(self) -> Self:
        """The view of all clients that hold data."""
        return replace(self, clients=self.tree.holders)

    def among(self, clients: Iterable[str]) -> Self:
        """The view of some clients; those without data are left out."""
        if clients is self.tree.holders:
            return self.whole
        wanted = set(clients)
        unknown = {client for client in wanted if client not in self.tree.clients}
        if unknown:
            raise PlaceError(f"there is no client {min(unknown)!r} in the tree; among() takes names of clients")
        return replace(self, clients=self.tree.in_order(client for client in wanted if client in self.tree.holders))

    def seat(self, seats: Mapping[str, str]) -> Self:
        """Seat leaders: the home of a sector is then its leader.

        Args:
            seats: sector → one of its clients in this view.

        Raises:
            PlaceError: if the client does not take part or belongs to another sector.
        """
        for sector, client in seats.items():
            if client not in self.clients:
                raise PlaceError(f"{client!r} cannot lead {sector!r}: it does not take part; choose among fed.clients")
            if self.tree.sector_of[client] != sector:
                raise PlaceError(f"{client!r} cannot lead {sector!r}: it belongs to {self.tree.sector_of[client]!r}")
        self.led.update(seats)
        return replace(self, seats=dict(self.seats) | dict(seats), sat=self.sat.union(seats.values()))

    def unseat(self) -> Self:
        """The view without leaders: the home of every sector is its host again."""
        return replace(self, seats={})

    def with_purpose(self, purpose: str) -> Self:
        return replace(self, purpose=purpose)

    def nodes(self, place: Place) -> Sequence[str]:
        if place is CLIENTS:
            return self.clients
        return self.sectors if place is SECTORS else (ROOT,)

    def nodes_of(self, place: Place, values: Mapping[str, object]) -> Sequence[str]:
        """Nodes at a place that hold a value, in tree order. Time grows with the number of values, not of clients."""
        if place is CLIENTS and self.clients is self.tree.holders and len(values) < len(self.clients):
            return self.tree.in_order(client for client in values if client in self.clients)
        return [node for node in self.nodes(place) if node in values]

    def home(self, node: str) -> str:
        """The node itself, or the leader of a sector that has one."""
        return self.seats.get(node, node)

    def role(self, node: str) -> str:
        if node == ROOT:
            return "server"
        return "client" if node in self.tree.sector_of else "leader" if node in self.seats else "sector"

    def rng(self, purpose: str, *keys: Key) -> np.random.Generator:
        """Random generator for this purpose, round and keys; equal keys give equal numbers."""
        return stream(self.session.seed, purpose, self.round, *keys)

    # -- computing

    def run(self, task: Callable[..., Any], at: Place, **inputs: Any) -> Located:
        """Run a task once at each node of the view, in tree order.

        Args:
            task: a function marked with `@task`; it gets a `TaskContext` and the inputs.
            at: `CLIENTS`, `SECTORS` or `SERVER`.
            **inputs: handles of values that live at these nodes, `maybe(handle)`, `each({node: plain value})`, or
                plain values that are the same everywhere. Arrays must come as handles.

        Returns:
            A handle to one result per node. The results stay at the nodes' homes.

        Raises:
            PlaceError: if an input is not where the task runs.
        """
        hidden = self.session.secure.on
        return submission.run(self, task, at, secure_sums.summed(self, task, at, inputs) if hidden else inputs)

    # -- moving

    def up(self, x: Located, to: Place | None = None) -> Located:
        """Move values towards the server. Each parent gets the mapping {child: value}, in tree order.

        Args:
            x: values at clients or sectors.
            to: `SECTORS` or `SERVER`; by default one tier up. From clients straight to the server, the sector only
                relays, and the ledger charges both tiers.
        """
        return secure_sums.up(self, x, to) if self.session.secure.on else moves.up(self, x, to)

    def down(self, x: Located | Mapping[str, Located], to: Place | None = None) -> Located:
        """Move values away from the server. Each child gets its parent's value.

        Args:
            x: values at the server or at sectors; or {node: handle}, which gives each node a value of its own.
            to: `SECTORS` or `CLIENTS`; by default one tier down.
        """
        return moves.down(self, x, to)

    def hand(self, x: Located) -> Located:
        """Move sectors' values to their present homes: the leader, or the host where no leader is seated."""
        return moves.hand(self, x)

    @cached_property
    def paths(self) -> dict[tuple[str, str, str], Path]:
        """Cache of `Path` objects by direction and roles, for `core.moves`."""
        return {}

    # -- handles

    def update(self, old: Located, new: Located) -> Located:
        """Join two handles by node: the new value where it exists, else the old one. Nothing moves.

        A new value that turns out to be lost is replaced by the old one at the same home.
        """
        if old.place is not new.place:
            raise PlaceError(f"update() joins values of one place, got {old.place.value} and {new.place.value}")
        refs = dict(old.nodes)
        for node, ref in new.nodes.items():
            before = refs.get(node)
            refs[node] = ref
            if isinstance(ref, Ref) and isinstance(before, Ref) and ref.home == before.home and ref != before:
                name = self.session.name(self.round, f"either@{node}")
                self.session.engine.either(ref, before, name)
                refs[node] = Ref(name, ref.home)
        return Located(old.place, refs)

    def missing(self, x: Located) -> tuple[str, ...]:
        """Nodes whose value was lost. Waits for the values."""
        return tuple(n for n, ref in x.nodes.items() if isinstance(ref, Ref) and self.session.engine.info(ref) is None)

    def read(self, x: Located) -> Any:
        """Return a value that is at the server. Waits for it.

        Returns:
            The value; a dict by child after `up`, without lost ones; None if there is none.

        Raises:
            PlaceError: if the value is not at the server.
        """
        if x.place is not SERVER:
            raise PlaceError(
                f"only what is at the server can be read, and this is at {x.place.value}; move it with up() first"
            )
        value = x.nodes.get(ROOT)
        if value is None:
            return None
        if self.session.secure.on:
            secure_sums.refuse_hidden(self, "reading a value", SERVER, "", x)
        if isinstance(value, Ref):
            result = self.session.engine.read(value)
            return None if result is LOST else result
        results = fetched(value.refs, self.session.engine.read)
        return {child: result for _, found in results for child, result in found.items() if result is not LOST}

    # -- for the training loop, never for a method

    def restore_lost(self, old: Any, new: Any) -> Any:
        """Replace values of the new state that were lost at the server or at a sector by the old ones, by node."""
        if isinstance(new, Located) and isinstance(old, Located):
            if new.place is not old.place or new.place is CLIENTS:
                return new
            before = Located(old.place, {node: ref for node, ref in old.nodes.items() if node in new.nodes})
            return self.update(before, new)
        if (names := field_names(type(new))) and type(new) is type(old):
            parts = {name: (getattr(old, name), getattr(new, name)) for name in names}
            joined = {name: self.restore_lost(*both) for name, both in parts.items()}
            return rebuilt(new, {name: item for name, item in joined.items() if item is not parts[name][1]})
        if isinstance(new, dict) and isinstance(old, dict):
            return {key: self.restore_lost(old[key], item) if key in old else item for key, item in new.items()}
        if isinstance(new, tuple) and isinstance(old, tuple):
            return tuple(map(self.restore_lost, old, new)) + new[len(old) :]
        return new

    def keep(self, state: Any) -> None:
        """Drop all values that the state does not hold, and settle the round in the ledger. Waits."""
        self.session.release(names_in(state))
        self.session.settle(self.round)

    def begin(self, round: int, clients: Sequence[str]) -> Federation:
        """The view of a new round."""
        self.session.calls.clear()
        self.session.lost.clear()
        self.session.hidden.clear()
        fresh: dict[str, Any] = {"seats": {}, "sat": frozenset(), "led": {}, "steps_before": {}}
        return replace(self, round=round, clients=clients, purpose="train", **fresh)
