"""All that a method sees: a view of the tree with a handful of verbs, under one law.

The law: a value lives at a home. `run` computes at a home with what is there; only `up`, `down` and `hand` change a
value's home, and only they are charged. A method holds `Located` handles, never the values; only what is at the
server can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from headwater.core.ledger import DOWN, UP, Path, Row
from headwater.core.precompute import add_precomputation
from headwater.core.tree import CLIENTS, ROOT, SECTORS, SERVER, Place
from headwater.core.values import Located, each, inputs_for, maybe, names_in, nothing, told_apart
from headwater.core.view import Session, View
from headwater.engines.base import EVERY, LOST, Bundle, Job, Ref
from headwater.errors import PlaceError


@dataclass(frozen=True)
class Federation(View):
    """The verbs over a view; `seat`, `among` and the like give another one."""

    # -- computing

    def run(self, task: Callable[..., Any], at: Place, **inputs: Any) -> Located:
        """The task once at each node of the view, in tree order; results stay at each home."""
        title = getattr(task, "__name__", str(task))
        nth = self.session.calls[title]
        self.session.calls[title] += 1
        same, by_node = told_apart(inputs, title)
        plain, jobs, refs = frozenset(same), [], {}
        sizes, seats, round = self.tree.sizes, self.seats, self.round
        for group in self.session.groups(task, self.nodes(at), sizes):
            name, several = self.session.name(round, f"{title}@{group[0]}"), len(group) > 1
            for node in group:
                home = seats.get(node, node)
                given = same | inputs_for(by_node, title, at, node, home, seats.get(node))
                key, lost = (round, title, nth, node), self._struck(home, title, nth)
                jobs.append(Job(name, task, node, home, given, key, lost, sizes[home], plain))
                refs[node] = Ref(name, home, (), node if several else "")
        self.session.submit(self.round, add_precomputation(self, jobs))
        return Located(at, refs)

    def _struck(self, home: str, title: str, nth: int) -> bool:
        """Simulated loss: drawn by (round, home, task) in program order, so every engine loses the same."""
        if self.session.dropout and home in self.tree.sector_of and self.purpose == "train":
            if self.rng("faults", home, title, nth).random() < self.session.dropout:
                self.session.lost.add(home)
            return home in self.session.lost
        return False

    # -- moving

    def up(self, x: Located, to: Place | None = None) -> Located:
        """Each parent gets the mapping {child: value} in tree order."""
        to = to or (SECTORS if x.place is CLIENTS else SERVER)
        if to.height <= x.place.height:
            raise PlaceError(f"up() cannot move from {x.place.value} to {to.value}; use down() for that")
        refs: dict[str, dict[str, Ref]] = {parent: {} for parent in self.nodes(to)}
        seats, sector_of = self.seats, self.tree.sector_of
        for child in self.nodes_of(x.place, x.nodes):
            parent = ROOT if to is SERVER else sector_of[child]
            refs[parent][child] = x.at(child, seats.get(child, child), "up", seats.get(child))
        return Located(to, {parent: Bundle(self._carry(held, parent, UP)) for parent, held in refs.items() if held})

    def down(self, x: Located | Mapping[str, Located], to: Place | None = None) -> Located:
        """Each child gets its parent's value; `down({node: x})` gives each node its own."""
        if isinstance(x, Mapping):
            tiers = {
                n: CLIENTS if n in self.tree.sector_of else SECTORS for n in x if n in self.tree.sizes and n != ROOT
            }
            if len(tiers) < len(x) or len({*tiers.values(), *((to,) if to else ())}) > 1:
                raise PlaceError(
                    f"down() gives values to clients or to sectors of the tree, all of one tier, got {list(x)}"
                )
            to, given = next(iter(tiers.values()), to or CLIENTS), dict(x)
        else:
            to = to or (SECTORS if x.place is SERVER else CLIENTS)
            given = dict.fromkeys(self.nodes(to), x)
        refs: dict[str, dict[str, Ref]] = {}
        last: tuple[Located | None, str, Ref | None] = (None, "", None)  # of a broadcast, looked up once
        for node in self.nodes(to):
            source = given.get(node)
            if source is None:
                continue
            if last[0] is not source and source.place.height <= to.height:
                raise PlaceError(f"down() cannot move from {source.place.value} to {to.value}; use up() for that")
            parent = ROOT if source.place is SERVER else self.tree.sector_of[node]
            if parent not in source.nodes:
                continue
            if last[0] is not source or last[1] != parent:
                last = source, parent, source.at(parent, self.home(parent), "down", self.seats.get(parent))
            ref = last[2]
            assert ref is not None
            refs.setdefault(parent, {})[node] = ref
        moved = {node: ref for parent, held in refs.items() for node, ref in self._carry(held, parent, DOWN).items()}
        return Located(to, {node: moved[node] for node in self.nodes(to) if node in moved})

    def hand(self, x: Located) -> Located:
        """A sector's value to whoever sits there now: the leader, or the host when nobody does."""
        if x.place is not SECTORS:
            raise PlaceError(f"hand() passes on what sectors hold, not what is at {x.place.value}; use up() or down()")
        refs = {}
        for sector in self.sectors:
            if sector in x.nodes:
                ref, home = x.one(sector, "hand"), self.home(sector)
                if ref.home == home:
                    refs[sector] = ref
                    continue
                roles = ("sector" if ref.home == sector else "leader", self.role(sector))
                lower, direction = (ref.home, UP) if home == sector else (home, DOWN)
                path = Path(self.round, self.purpose, ("sector_client",), direction, roles)
                refs[sector] = self._deliver([(lower, ref, home)], path)[lower]
        return Located(SECTORS, refs)

    def _carry(self, refs: Mapping[str, Ref], upper: str, direction: str) -> dict[str, Ref]:
        """Move values between a node and some below it: {lower node: its value} before and after."""
        found: dict[str, Ref] = {}
        alike: dict[tuple[Any, ...], list[tuple[str, Ref, str]]] = {}
        above, clients = self.role(upper), next(iter(refs)) in self.tree.sector_of  # all of one tier
        seats, losing, rising = self.seats, self.session.losing, direction == UP
        top, kind = self.home(upper), (direction, "client", above)
        for lower, ref in refs.items():
            home = top if rising else seats.get(lower, lower)
            if ref.home == home:  # the same party: nothing moves and nothing is charged
                found[lower] = ref
                continue
            if not clients:
                kind = (direction, self.role(lower), above)
            # A group's values go together, and so do copies of one value; where homes are parties, each goes alone.
            which = (kind, lower) if losing else (kind, ref.name, ref.part, "" if rising else ref.member)
            alike.setdefault(which, []).append((lower, ref, home))
        for (kind, *_), moves in alike.items():
            found |= self._deliver(moves, self._paths.get(kind) or self._path(*kind))
        return {lower: found[lower] for lower in refs}

    @cached_property
    def _paths(self) -> dict[tuple[str, str, str], Path]:
        """Cache of `Path` objects by direction and roles."""
        return {}

    def _path(self, direction: str, lower: str, upper: str) -> Path:
        if lower != "client":
            tiers: tuple[str, ...] = ("server_sector",)
        elif upper != "server":
            tiers = ("sector_client",)
        else:  # straight through: the sector is a wire, so the value is charged on both tiers
            tiers = ("server_sector", "sector_client")
        roles = (lower, upper) if direction == UP else (upper, lower)
        path = self._paths[direction, lower, upper] = Path(self.round, self.purpose, tiers, direction, roles)
        return path

    def _deliver(self, moves: Sequence[tuple[str, Ref, str]], path: Path) -> dict[str, Ref]:
        """Move values of one name: (node at the lower end, value, new home) each."""
        session, (_, ref, home) = self.session, moves[0]
        lower = tuple(node for node, _, _ in moves)
        name = session.name(self.round, f"{ref.home}>{home}")
        if several := path.direction == UP and len(moves) > 1 and bool(ref.member):
            session.engine.move(replace(ref, member=EVERY), home, name, path.tiers)
            members = tuple(ref.member for _, ref, _ in moves)
            session.ledger.charge(Row(path, name, lower, members))
        else:
            session.engine.move(ref, home, name, path.tiers)
            session.ledger.charge(Row(path, name, lower))
        return {node: Ref(name, home, (), ref.member if several else "") for node, ref, home in moves}

    # -- handles

    def update(self, old: Located, new: Located) -> Located:
        """By node: the new value if it arrived, else the old one at the same home; nothing moves."""
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
        """The nodes whose value was lost. Waits."""
        return tuple(n for n, ref in x.nodes.items() if isinstance(ref, Ref) and self.session.engine.info(ref) is None)

    def read(self, x: Located) -> Any:
        """The value of what is at the server. Waits."""
        if x.place is not SERVER:
            raise PlaceError(
                f"only what is at the server can be read, and this is at {x.place.value}; move it with up() first"
            )
        held = x.nodes.get(ROOT)
        if held is None:
            return None
        if isinstance(held, Ref):
            value = self.session.engine.read(held)
            return None if value is LOST else value
        found = {child: self.session.engine.read(ref) for child, ref in held.refs.items()}
        return {child: value for child, value in found.items() if value is not LOST}

    # -- for the training loop, never for a method

    def keep(self, state: Any) -> None:
        """Forget by name all that the state does not hold, and close the round's rows of the ledger. Waits."""
        self.session.release(names_in(state))
        self.session.settle(self.round)

    def begin(self, round: int, clients: Sequence[str]) -> Federation:
        self.session.calls.clear()
        self.session.lost.clear()
        return replace(self, round=round, clients=clients, seats={}, sat=frozenset(), purpose="train")


__all__ = ["CLIENTS", "SECTORS", "SERVER", "Federation", "Located", "Session", "each", "maybe", "nothing"]
