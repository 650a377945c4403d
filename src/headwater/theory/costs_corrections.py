"""Cost of the methods that correct or regularise local training."""

from __future__ import annotations

from headwater.theory.traffic import FLAT, Active, Formula, Link, Options, Payload, Traffic, averaged, flat


def _with_variates(who: Active, sizes: Payload, options: Options) -> Traffic:
    """SCAFFOLD: the model and the common variate down; up the model and, unless that is worked out, a change."""
    inside = who.clients
    long = who.sectors if options.get("through_sectors") else inside
    up = 1 if options.get("reconstruct") else 2
    return Traffic(_pairs(sizes, up, long), _pairs(sizes, up, inside))


def _pairs(sizes: Payload, up: int, ends: int) -> Link:
    """So many models up from each lower end and two down to it, in one round trip."""
    return Link(up * ends * sizes.model, 2 * ends * sizes.model, up * ends, 2 * ends, ends)


def _sent_back(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Hierarchical SCAFFOLD: as hierarchical averaging, and the last average goes back to clients."""
    again = Link(down_bytes=who.clients * sizes.model, down_models=who.clients)
    return _paced(who, sizes, options) + Traffic(sector_client=again)


def _paces(options: Options) -> dict[str, int]:
    return {"sector_rounds": int(options.get("sector_rounds", 2))}


def _paced(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Hierarchical averaging with as many sector rounds as these methods have unless told."""
    return averaged(who, sizes, dict(options) | _paces(options))


def _mtgc(who: Active, sizes: Payload, options: Options) -> Traffic:
    """`round` tells the first one, which has no y yet; `sectors` how many hold data, where not all of them take part.

    A leader's cost is that of the same people taking part in all of a round's sector rounds.
    """
    paces, first = _paces(options)["sector_rounds"], options.get("round", 2) == 1
    use_z, use_y = bool(options.get("use_z", True)), bool(options.get("use_y", True))
    redrawn = paces if options.get("sample") == "sector-round" else 1
    asked = options.get("z_init") == "gradient" and (use_z or (use_y and first))  # gradients are
    held = use_y and not first  # y, at the hosts
    known = held or (use_y and asked)
    led = options.get("leader", "none") != "none"

    # For each client (that is not its own leader): up, and down.
    up = paces + asked
    down = redrawn * (1 + known) + (paces if use_z else 0 if redrawn > 1 else paces - 1) + (asked and use_z)
    talk = who.clients - who.sectors if led else who.clients
    inside = _times(sizes, up * talk, down * talk, up * talk)
    if led:  # start, y and the new model to the leader, y back
        inside += _times(sizes, who.sectors * use_y, who.sectors * (1 + held + use_y), who.sectors * use_y)
    both = asked and use_y and first  # gradients go on to the server
    told = int(options.get("sectors", who.sectors))
    trips = who.sectors if both or not first else 0
    return Traffic(_times(sizes, who.sectors * (1 + both), told + who.sectors * both, trips), inside)


def _times(sizes: Payload, up: int, down: int, trips: int) -> Link:
    return Link(sizes.model * up, sizes.model * down, up, down, trips)


def _start(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The starting model to every sector."""
    return Traffic(Link(down_bytes=who.sectors * sizes.model, down_models=who.sectors))


FORMULAS: dict[str, Formula] = {
    "fedprox": Formula(FLAT, flat),
    "fedavgm": Formula(FLAT, flat),
    "feddyn": Formula(FLAT, flat),
    "scaffold": Formula("2N, 2N | 2N, 2N (through sectors 2M, 2M | 2N, 2N; reconstructed N up)", _with_variates),
    "mtgc": Formula("M, M | E·N, (E + 2)·N (before: 0, M)", _mtgc, _start),
    "hfedprox": Formula("M, M | E·N, E·N", _paced),
    "hscaffold": Formula("M, M | E·N, (E + 1)·N", _sent_back),
    "hfeddyn": Formula("M, M | E·N, E·N", _paced),
}
