"""Cost of the methods that keep several models."""

from __future__ import annotations

from headwater.theory.traffic import Active, Formula, Link, Options, Payload, Traffic, flat, models, straight

RELAYED = "N, N | N, N (through sectors P, P | N, N with P ≤ K·M)"


def pairs(who: Active, options: Options, by_turns: bool) -> int:
    """P: how often a sector has a client of a cohort. Exact if it is known who took part (`active`, `seed`), else the
    most there can be."""
    cohorts = int(options.get("cohorts", 5 if by_turns else 4))
    if "active" not in options:
        return sum(min(team, cohorts) for team in who.teams)
    from headwater.core.rng import stream  # with numpy, which reading the table of costs can do without
    from headwater.core.sampling import Cohorts, deal, turns

    seed, round = int(options.get("seed", 0)), int(options["round"])
    clients = tuple(options["active"][round - 1])
    sector_of = dict(zip(clients, (s for s, size in enumerate(who.teams) for _ in range(size)), strict=True))
    dealt: Cohorts = turns(clients, cohorts, seed, round) if by_turns else {}
    if not by_turns:
        dealt = deal(clients, cohorts, stream(seed, "cohorts", round), options.get("remainder", "front"))
    return len({(sector_of[client], k) for k, members in dealt.items() for client in members})


def _relayed(who: Active, sizes: Payload, options: Options, by_turns: bool) -> Traffic:
    """A model to each sector for each of its cohorts, and their means back; a sector answers once, with all of them."""
    met = pairs(who, options, by_turns)
    long = Link(met * sizes.model, met * sizes.model, met, met, who.sectors)
    return Traffic(long, models(sizes, who.clients, who.clients))


def _eed(who: Active, sizes: Payload, options: Options) -> Traffic:
    through = bool(options.get("through_sectors"))
    found = (_relayed(who, sizes, options, by_turns=False)) if through else straight(who, sizes, options)
    if options.get("server_weights") == "labels":
        up = pairs(who, options, by_turns=False) if through else who.clients
        found += Traffic(Link(up_bytes=up * sizes.label_counts), Link(up_bytes=who.clients * sizes.label_counts))
    return found


def _by_turns(who: Active, sizes: Payload, options: Options) -> Traffic:
    return _relayed(who, sizes, options, by_turns=True) if options.get("through_sectors") else flat(who, sizes, options)


def _framed(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Straight, or twice by way of leaders; with SCAFFOLD a variate goes with each model to clients and back."""
    led, times = options.get("ensemble") == "sector", 2 if options.get("local") == "scaffold" else 1
    members = who.clients - who.sectors
    n = times * (members if led else who.clients)
    inside, long = Link(n * sizes.model, n * sizes.model, n, n, members if led else who.clients), Link()
    if led:
        m = (times + 1) * who.sectors
        long = Link(m * sizes.model, m * sizes.model, m, m, 2 * who.sectors)
        if options.get("weights") == "labels":
            inside += Link(up_bytes=members * sizes.label_counts)
        return Traffic(long, inside)
    if options.get("server_weights") == "labels" and options.get("ensemble") != "none":
        inside += Link(up_bytes=who.clients * sizes.label_counts)
    return Traffic(inside, inside)


def _held(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The validation set at every client, where leaders are judged on it."""
    if options.get("ensemble") != "sector" or options.get("val_source", "server") != "server":
        return Traffic()
    sent = (who.sectors * sizes.validation, who.clients * sizes.validation)
    return Traffic(Link(down_bytes=sent[0]), Link(down_bytes=sent[1]))


FORMULAS: dict[str, Formula] = {
    "fedbe": Formula("N, N | N, N", straight),
    "fed-ensemble": Formula(RELAYED, _by_turns),
    "fedeed": Formula(RELAYED, _eed),
    "frame": Formula("N, N | N, N (with leaders 2M, 2M | N − M, N − M)", _framed, _held),
}
