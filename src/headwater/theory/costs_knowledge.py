"""Cost of the methods that share knowledge in addition to models or instead of them.

Traffic depends on which client holds which class. The options `counts` (client → samples by class), `active` (the
clients of each round) and, for `through_sectors`, `sector_of` (client → sector) describe this. Without them every
client is assumed to share every class, which gives an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.theory.traffic import NUMBER, Active, Formula, Link, Options, Payload, Traffic, flat, start_at_clients

WIDTH = 4  # bytes of a number in an array
Held = tuple[set[int], ...]  # classes that each sender knows


def _shared(options: Options, counts: Sequence[int]) -> set[int]:
    """The classes that a client shares. FedHKD requires a share nu of its samples and, with noise, two samples."""
    nu = float(options.get("nu", 0.0))
    least = 2 if options.get("sigma", 0) and options.get("noise", "scaled") == "scaled" else 1
    return {j for j, n in enumerate(counts) if n >= least and n / sum(counts) >= nu}


def _held(options: Options, who: Active, sizes: Payload, number: int) -> tuple[Held, Held]:
    """The classes that each client and each sector of a round knows."""
    if "counts" not in options or "active" not in options:
        every = set(range(sizes.classes))
        return (every,) * who.clients, (every,) * who.sectors
    clients = options["active"][number - 1]
    mine = {c: _shared(options, options["counts"][c]) for c in clients}
    sector = options.get("sector_of", dict.fromkeys(clients, ""))
    teams = {s: set().union(*(mine[c] for c in clients if sector[c] == s)) for s in {sector[c] for c in clients}}
    return tuple(mine.values()), tuple(teams.values())


def _known(options: Options, who: Active, sizes: Payload, each: int, answers: bool) -> Traffic:
    """Traffic of class means of `each` bytes: up with a count for each, down the means of the previous round."""
    number, relayed = int(options.get("round", 2)), bool(options.get("through_sectors"))
    clients, sectors = _held(options, who, sizes, number)
    before = len(set().union(*_held(options, who, sizes, number - 1)[0])) if number > 1 else 0

    def link(senders: Held, receivers: int) -> Link:
        up, down = sum(map(len, senders)) * (each + NUMBER), receivers * before * each
        return Link(up_bytes=up, down_bytes=down, round_trips=receivers if answers and number > 1 else 0)

    inside = link(clients, who.clients)
    return Traffic(link(sectors, who.sectors) if relayed else inside, inside)


def _fedhkd(who: Active, sizes: Payload, options: Options) -> Traffic:
    filled = {"nu": 0.25, "sigma": 7.0} | dict(options)
    return flat(who, sizes, options) + _known(filled, who, sizes, sizes.features + WIDTH * sizes.classes, answers=False)


def _fedproto(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Prototypes only; with `share_params`, prototypes and the model."""
    alone = not options.get("share_params")
    known = _known(options, who, sizes, sizes.features, answers=alone)
    return known if alone else flat(who, sizes, options) + known


def _own_models(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The starting model of every client, unless clients share one model."""
    return Traffic() if options.get("share_params") else start_at_clients(who, sizes, options)


def _fedmd(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Predictions up and their mean down. Flavours with a global model also send it, and the mean from round 2 on."""
    number, relayed = int(options.get("round", 2)), bool(options.get("through_sectors"))
    table = WIDTH * sizes.align * sizes.classes
    one = options.get("flavour", "original") != "original"
    sent = table if number > 1 or not one else 0

    def link(ends: int, header: int, trips: int) -> Link:
        return Link(ends * (table + header), ends * sent, round_trips=0 if one else trips)

    inside = link(who.clients, 0, _answering(who.clients, options, number, "clients"))
    long = link(who.sectors, NUMBER, _answering(who.sectors, options, number, "sectors")) if relayed else inside
    return Traffic(long, inside) + (flat(who, sizes, options) if one else Traffic())


def _answering(ends: int, options: Options, number: int, tier: str) -> int:
    """Number of nodes of this round that received the mean in an earlier round.

    Only these complete a round trip, because a round of FedMD begins with the clients' predictions.
    """
    if "active" not in options:
        return ends if number > 1 else 0
    sector = options.get("sector_of", {})
    rounds = [{sector.get(c, c) if tier == "sectors" else c for c in clients} for clients in options["active"]]
    return len(rounds[number - 1] & set().union(*rounds[: number - 1]))


def _public(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The public set to every client and, in the flavour with personal models, the starting models."""
    ends = who.sectors if options.get("through_sectors") else who.clients
    rows = Traffic(Link(down_bytes=ends * sizes.reference), Link(down_bytes=who.clients * sizes.reference))
    return rows + (start_at_clients(who, sizes, {}) if options.get("flavour", "original") == "original" else Traffic())


# k: classes shared; d: numbers of a representation; c: classes; a: public rows predicted.
FORMULAS: dict[str, Formula] = {
    "fedhkd": Formula("N, N | N, N and k·(d + c) numbers each way", _fedhkd),
    "fedhkd-star": Formula("N, N | N, N and k·(d + c) numbers each way", _fedhkd),
    "fedproto": Formula("no model (before: 0, N | 0, N), k·d numbers each way", _fedproto, _own_models),
    "fedmd": Formula("no model (before: 0, N | 0, N and the public set), a·c numbers each way", _fedmd, _public),
}
