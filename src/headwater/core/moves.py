"""How `up`, `down` and `hand` move values: grouping, delivery by the engine, and the charge to the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.core.ledger import DOWN, UP, Path, Row
from headwater.core.tree import CLIENTS, ROOT, SECTORS, SERVER, Place
from headwater.core.values import Located
from headwater.engines.refs import EVERY, Bundle, Ref, RefGroup, Refs
from headwater.errors import PlaceError

if TYPE_CHECKING:
    from headwater.core.federation import Federation

Move = tuple[str, Ref, str]  # node at the lower end, value, new home


def up(fed: Federation, x: Located, to: Place | None) -> Located:
    """See `Federation.up`."""
    to = to or (SECTORS if x.place is CLIENTS else SERVER)
    if to.height <= x.place.height:
        raise PlaceError(f"up() cannot move from {x.place.value} to {to.value}; use down() for that")
    if to is SERVER and isinstance(x.nodes, Refs) and x.nodes.nodes == fed.clients:
        path = fed.paths.get((UP, "client", "server")) or _path(fed, UP, "client", "server")
        return Located(SERVER, {ROOT: Bundle(Refs(_deliver_group(fed, group, path) for group in x.nodes.groups))})
    refs: dict[str, dict[str, Ref]] = {parent: {} for parent in fed.nodes(to)}
    seats, sector_of = fed.seats, fed.tree.sector_of
    for child in fed.nodes_of(x.place, x.nodes):
        parent = ROOT if to is SERVER else sector_of[child]
        refs[parent][child] = x.at(child, seats.get(child, child), "up", seats.get(child))
    return Located(to, {parent: Bundle(_carry(fed, values, parent, UP)) for parent, values in refs.items() if values})


def down(fed: Federation, x: Located | Mapping[str, Located], to: Place | None) -> Located:
    """See `Federation.down`."""
    if isinstance(x, Mapping):
        tiers = {n: CLIENTS if n in fed.tree.sector_of else SECTORS for n in x if n in fed.tree.sizes and n != ROOT}
        if len(tiers) < len(x) or len({*tiers.values(), *((to,) if to else ())}) > 1:
            raise PlaceError(
                f"down() gives values to clients or to sectors of the tree, all of one tier, got {list(x)}"
            )
        to, sources = next(iter(tiers.values()), to or CLIENTS), dict(x)
    else:
        to = to or (SECTORS if x.place is SERVER else CLIENTS)
        if x.place is SERVER and to is CLIENTS and fed.session.takes_groups and ROOT in x.nodes and fed.clients:
            return _broadcast(fed, x.at(ROOT, ROOT, "down", None))
        sources = dict.fromkeys(fed.nodes(to), x)
    refs: dict[str, dict[str, Ref]] = {}
    last: tuple[Located | None, str, Ref | None] = (None, "", None)  # a broadcast looks its value up once
    for node in fed.nodes(to):
        source = sources.get(node)
        if source is None:
            continue
        if last[0] is not source and source.place.height <= to.height:
            raise PlaceError(f"down() cannot move from {source.place.value} to {to.value}; use up() for that")
        parent = ROOT if source.place is SERVER else fed.tree.sector_of[node]
        if parent not in source.nodes:
            continue
        if last[0] is not source or last[1] != parent:
            last = source, parent, source.at(parent, fed.home(parent), "down", fed.seats.get(parent))
        ref = last[2]
        assert ref is not None
        refs.setdefault(parent, {})[node] = ref
    moved = {node: ref for parent, values in refs.items() for node, ref in _carry(fed, values, parent, DOWN).items()}
    return Located(to, {node: moved[node] for node in fed.nodes(to) if node in moved})


def hand(fed: Federation, x: Located) -> Located:
    """See `Federation.hand`."""
    if x.place is not SECTORS:
        raise PlaceError(f"hand() passes on what sectors hold, not what is at {x.place.value}; use up() or down()")
    refs = {}
    for sector in fed.sectors:
        if sector in x.nodes:
            ref, home = x.one(sector, "hand"), fed.home(sector)
            if ref.home == home:
                refs[sector] = ref
                continue
            roles = ("sector" if ref.home == sector else "leader", fed.role(sector))
            lower, direction = (ref.home, UP) if home == sector else (home, DOWN)
            path = Path(fed.round, fed.purpose, ("sector_client",), direction, roles)
            refs[sector] = _deliver(fed, [(lower, ref, home)], path)[lower]
    return Located(SECTORS, refs)


def _broadcast(fed: Federation, ref: Ref) -> Located:
    """Move a value from the server to all clients of the view."""
    clients, path = (
        tuple(fed.clients),
        fed.paths.get((DOWN, "client", "server")) or _path(fed, DOWN, "client", "server"),
    )
    name = _move(fed, ref, clients[0], path, clients)
    return Located(CLIENTS, Refs([RefGroup(name, clients)]))


def _deliver_group(fed: Federation, group: RefGroup, path: Path) -> RefGroup:
    """Move the clients' values of one group to the server."""
    name = _move(fed, group.whole, ROOT, path, group.nodes, group.nodes if group.grouped else ())
    return RefGroup(name, group.nodes, ROOT, (), group.grouped)


def _carry(fed: Federation, refs: Mapping[str, Ref], upper: str, direction: str) -> dict[str, Ref]:
    """Move values between a node and nodes below it.

    Args:
        fed: the view.
        refs: lower node → value before the move; the nodes are of one tier.
        upper: the node above.
        direction: `UP` or `DOWN`.

    Returns:
        Lower node → value after the move, in the same order.
    """
    moved: dict[str, Ref] = {}
    alike: dict[tuple[Any, ...], list[Move]] = {}
    above, clients = fed.role(upper), next(iter(refs)) in fed.tree.sector_of
    seats, losing, rising = fed.seats, fed.session.losing, direction == UP
    top, kind = fed.home(upper), (direction, "client", above)
    for lower, ref in refs.items():
        home = top if rising else seats.get(lower, lower)
        if ref.home == home:  # the same party: nothing moves and nothing is charged
            moved[lower] = ref
            continue
        if not clients:
            kind = (direction, fed.role(lower), above)
        # Values of one group move together, and so do copies of one value. Between parties each moves alone.
        which = (kind, lower) if losing else (kind, ref.name, ref.part, "" if rising else ref.member)
        alike.setdefault(which, []).append((lower, ref, home))
    for (kind, *_), moves in alike.items():
        moved |= _deliver(fed, moves, fed.paths.get(kind) or _path(fed, *kind))
    return {lower: moved[lower] for lower in refs}


def _path(fed: Federation, direction: str, lower: str, upper: str) -> Path:
    if lower != "client":
        tiers: tuple[str, ...] = ("server_sector",)
    elif upper != "server":
        tiers = ("sector_client",)
    else:  # straight through: the sector only relays, so the value is charged on both tiers
        tiers = ("server_sector", "sector_client")
    roles = (lower, upper) if direction == UP else (upper, lower)
    path = fed.paths[direction, lower, upper] = Path(fed.round, fed.purpose, tiers, direction, roles)
    return path


def _deliver(fed: Federation, moves: Sequence[Move], path: Path) -> dict[str, Ref]:
    """Move values that share one name, and charge them as one row of the ledger."""
    _, ref, home = moves[0]
    lower = tuple(node for node, _, _ in moves)
    if several := path.direction == UP and len(moves) > 1 and bool(ref.member):
        name = _move(fed, replace(ref, member=EVERY), home, path, lower, tuple(ref.member for _, ref, _ in moves))
    else:
        name = _move(fed, ref, home, path, lower)
    return {node: Ref(name, home, (), ref.member if several else "") for node, ref, home in moves}


def _move(
    fed: Federation, ref: Ref, home: str, path: Path, lower: tuple[str, ...], members: tuple[str, ...] = ()
) -> str:
    """Move one value, or the members of a group, and charge it as one row of the ledger. Returns the new name."""
    session = fed.session
    name = session.name(fed.round, f"{ref.home}>{home}")
    session.engine.move(ref, home, name, path.tiers)
    row = Row(path, name, lower, members)
    session.ledger.charge(row)
    if (witness := session.witness) is not None:
        witness(fed, row, ref, home)
    return name
