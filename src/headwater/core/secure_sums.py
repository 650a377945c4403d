"""How verbs work with `privacy.secure`: `up` leaves values in place, and a task that only sums them gets their sum.

Which sum a task needs is known when it runs, so `up` returns a handle to values that are still at their senders. When
a task that declares `sums` takes them, the steps of a secure sum take the place of the move: each is a task and a move
like any other. Any other use is refused. A method does not declare what it needs: that follows from its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headwater.core import moves
from headwater.core.tree import CLIENTS, ROOT, SECTORS, SERVER, Place
from headwater.core.values import Located, each, located_in
from headwater.engines.refs import Bundle, Hidden, Ref
from headwater.errors import ConfigError
from headwater.secure.primitives import check_installed
from headwater.secure.setting import AT_LEADER, FEWEST
from headwater.tasks import sealed, secure
from headwater.tasks.sums import Sum

if TYPE_CHECKING:
    from headwater.core.federation import Federation

SUM = "sum"  # name of the one value that a task gets in place of all
OPEN = ("evaluate",)  # purposes whose numbers are not hidden


def up(fed: Federation, x: Located, to: Place | None) -> Located:
    """As `Federation.up`, for a run that hides single values."""
    to = to or (SECTORS if x.place is CLIENTS else SERVER)
    lower = "client" if x.place is CLIENTS else "sector"
    upper = "server" if to is SERVER else "sector"
    setting = fed.session.secure
    if fed.purpose in OPEN or to.height <= x.place.height:
        return moves.up(fed, x, to)
    if setting.seals(lower, upper):
        return _sealed_up(fed, x)
    if not setting.masks_up(upper):
        return moves.up(fed, x, to)
    if fed.purpose == "export":
        raise ConfigError(
            f"privacy.secure = {setting.mode!r} hides single models from the server, but this method has no global "
            "model: every client's own model is sent to the server at the end; use a method with a global model, or "
            "privacy.secure = 'sectors'"
        )
    check_installed()
    refs: dict[str, dict[str, Ref]] = {}
    for child in fed.nodes_of(x.place, x.nodes):
        parent = ROOT if to is SERVER else fed.tree.sector_of[child]
        ref = x.at(child, fed.home(child), "up", fed.seats.get(child))
        fed.session.hidden.setdefault((ref.key, ref.part), False)
        refs.setdefault(parent, {})[child] = ref
    return Located(to, {parent: Hidden(refs[parent], fed) for parent in fed.nodes(to) if parent in refs})


def summed(fed: Federation, task: Callable[..., Any], at: Place, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a task, with the sum in place of values that are hidden.

    Raises:
        ConfigError: the task needs single values.
    """
    title = getattr(task, "__name__", str(task))
    of, kind = getattr(task, "sums", None) or ("", None)
    result = dict(inputs)
    for name, value in inputs.items():
        if name != of or not _is_hidden(value):
            for x in located_in(value):
                refuse_hidden(fed, title, at, name, x)
            continue
        assert kind is not None
        wanted: Sum | str = kind(**{key: item for key, item in inputs.items() if key != name})
        if isinstance(wanted, str):
            raise _refusal(fed, title, at, name, wanted)
        if fed.session.secure.noise_at == "server" and at is SERVER and getattr(wanted, "by", "") == "uniform":
            _refuse_equal_sectors(value)
        result[name] = _sum(value, at, wanted)
    return result


def refuse_hidden(fed: Federation, title: str, at: Place, name: str, x: Located) -> None:
    """Refuse values that are hidden from the place where they are used.

    Raises:
        ConfigError: with the reason and the place.
    """
    hidden: set[str] | None = None
    for node, held in x.nodes.items() if x.place is not CLIENTS else ():
        refs = held.refs.values() if isinstance(held, Bundle) else [held]
        away = [ref.key for ref in refs if ref.home != fed.home(node)]  # a method may have put them into another handle
        if away and hidden is None:
            hidden = {key for key, _ in fed.session.hidden}
        if isinstance(held, Hidden) or (hidden and not hidden.isdisjoint(away)):
            raise _refusal(fed, title, at, name, "it uses the value of each sender by itself")


def _refusal(fed: Federation, title: str, at: Place, name: str, why: str) -> ConfigError:
    mode = fed.session.secure.mode
    place = "the server" if at is SERVER else "the leaders of sectors" if fed.seats else "sectors"
    other = {"both": "'sectors' or 'server'", "sectors": "'server'", "server": "'sectors'"}[mode]
    given = f" (input {name!r} of {title})" if name else ""
    return ConfigError(
        f"privacy.secure = {mode!r} hides single values from {place}, but {title} needs them there: {why}{given}; use "
        f"a method or an option that only needs sums at {place}, or, if it needs only sums elsewhere, {other}"
    )


def _refuse_equal_sectors(x: Located) -> None:
    """Refuse noise on a hidden mean of sectors that count alike: how much a client counts in it is not in the sum."""
    held = next(iter(x.nodes.values()))
    if isinstance(held, Hidden) and not any(child in held.view.tree.sector_of for child in held.refs):
        raise ConfigError(
            "privacy.at = 'server' adds noise for the client that counts most, which privacy.secure hides from the "
            "server where sectors of unequal size count alike; set privacy.at = 'sector' or 'client', or an option of "
            "the method that weighs sectors by their samples"
        )


def _is_hidden(value: Any) -> bool:
    return isinstance(value, Located) and any(isinstance(held, Hidden) for held in value.nodes.values())


def _sum(x: Located, at: Place, wanted: Sum) -> Located:
    """Run the steps of a secure sum, and return its value as a mapping of one."""
    teams = {parent: held for parent, held in x.nodes.items() if isinstance(held, Hidden)}
    members = {child: ref for team in teams.values() for child, ref in team.refs.items()}
    view: Federation = next(iter(teams.values())).view
    setting, tree = view.session.secure, view.tree
    low = CLIENTS if next(iter(members)) in tree.sector_of else SECTORS
    for parent, team in teams.items():
        _check_members(view, parent, team.refs)
    alone = view.among(  # the members of the sums, and nobody else
        client for client in view.clients if (client if low is CLIENTS else tree.sector_of[client]) in members
    )
    many = each({parent: len(team.refs) for parent, team in teams.items()})
    least = {parent: setting.threshold(len(team.refs)) for parent, team in teams.items()}
    # The threshold of each sum, for the parent that adds up (`above`) and for its members (`below`).
    above = each(least)
    below = each({child: least[parent] for parent, team in teams.items() for child in team.refs})
    common = {"sum": wanted, "real": setting.masks}
    real, value = {"real": common["real"]}, Located(low, members)
    exponent = setting.exponent(sum(tree.client_sizes.values()) + len(members))

    def sent(part: Located) -> Located:
        return moves.up(alone, part, at)

    keys = alone.run(secure.advertise_keys, at=low, value=value, **common)
    listed = alone.run(secure.list_keys, at=at, said=sent(keys["public"]), threshold=above, members=many, **real)
    roster = alone.down(listed, to=low)
    own_secret = keys["secret"]
    shares = alone.run(secure.share_seeds, at=low, secret=own_secret, roster=roster, threshold=below, **real)
    named = each({parent: tuple(team.refs) for parent, team in teams.items()})
    passed = alone.run(secure.pass_shares, at=at, sealed=sent(shares["sealed"]), members=named, threshold=above)
    inbox = alone.down({child: passed[child] for child in members}, to=low)
    held = {"secret": own_secret, "roster": roster}
    opened = alone.run(secure.open_shares, at=low, **held, inbox=inbox, **real)
    agreed = alone.run(secure.agree_on_members, at=at, opened=sent(opened), threshold=above, members=many)
    core = alone.down(agreed, to=low)
    fixed = {"exponent": exponent, "range": setting.range, "threshold": below}
    words = alone.run(secure.mask_value, at=low, value=value, **held, opened=opened, core=core, **common, **fixed)
    added = alone.run(secure.add_masked, at=at, masked=sent(words), threshold=above, members=many)
    alive = alone.down(added["alive"], to=low)
    own = {"inbox": inbox, "kept": shares["kept"], "core": core, "alive": alive}
    told = alone.run(secure.reveal_shares, at=low, **held, **own, threshold=below, **real)
    total = alone.run(
        secure.open_sum,
        at=at,
        total=added["total"],
        alive=added["alive"],
        roster=listed,
        core=agreed,
        told=sent(told),
        exponent=exponent,
        threshold=above,
        **common,
    )
    return Located(at, {parent: Bundle({SUM: ref}) for parent, ref in total.nodes.items() if isinstance(ref, Ref)})


def _check_members(view: Federation, parent: str, refs: Mapping[str, Ref]) -> None:
    """Refuse a sum of so few values that it tells a single one, and a second sum of the same values."""
    led = parent in view.seats
    place = "the server" if parent == ROOT else f"the leader of {parent}" if led else parent
    least = AT_LEADER if led else FEWEST
    if len(refs) < least:
        raise ConfigError(
            f"privacy.secure: a sum at {place} in round {view.round} has {len(refs)} "
            f"member{'s' if len(refs) != 1 else ''}, and would tell the value of a single one; it needs at least "
            f"{least}: use fewer sectors or cohorts, or more clients in a round"
        )
    hidden, keys = view.session.hidden, [(ref.key, ref.part) for ref in refs.values()]
    if any(hidden.get(key) for key in keys):
        raise ConfigError(
            f"privacy.secure: {place} would get two sums of the same values, whose difference may tell single ones; "
            "use an option of the method that needs one sum"
        )
    hidden.update(dict.fromkeys(keys, True))


def _sealed_up(fed: Federation, x: Located) -> Located:
    """Send clients' values to the server, so that the host that relays them cannot read them."""
    check_installed()
    alone = fed.among(fed.nodes_of(CLIENTS, x.nodes))
    key = alone.run(sealed.make_key, at=SERVER)
    boxes = alone.run(sealed.seal, at=CLIENTS, value=x, public=alone.down(key["public"], to=CLIENTS))
    bundle = moves.up(alone, boxes, SERVER).nodes.get(ROOT)
    if not isinstance(bundle, Bundle):
        return Located(SERVER)
    opened: dict[str, Ref] = {}
    for client, ref in bundle.refs.items():
        one = alone.run(sealed.unseal, at=SERVER, box=Located(SERVER, {ROOT: ref}), secret=key["secret"])
        held = one.nodes[ROOT]
        assert isinstance(held, Ref)
        opened[client] = held
    return Located(SERVER, {ROOT: Bundle(opened)})
