"""What a method sends, in closed form: models, bytes and round trips on both links, for a round and for a run.

N is the number of active clients and M the number of sectors that have any. A value that goes straight from the server
to a client crosses both links, so a method that does not use sectors pays N on each; a sector that receives a value
itself can relay or average it, and then the long link carries M.

>>> whole = Active((3, 2))
>>> run_traffic("fedhead", [whole] * 10, Payload(model=1000)).server_sector.round_trips
40
>>> run_traffic("feddf", [whole] * 10, Payload(model=1000)).server_sector.round_trips
50
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.errors import ConfigError, nearest
from headwater.theory import costs_knowledge
from headwater.theory.traffic import (
    FLAT,
    NUMBER,
    Active,
    Formula,
    Link,
    Options,
    Payload,
    Traffic,
    averaged,
    flat,
    models,
    start_at_clients,
    straight,
)

RELAYED = "N, N | N, N (through sectors P, P | N, N with P ≤ K·M)"

# -- averages, leaders and references


def _led(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Twice to the leaders and back; inside a sector everybody but the leader, who has nothing to send to itself."""
    members = who.clients - who.sectors
    long, inside = models(sizes, 2 * who.sectors, 2 * who.sectors), models(sizes, members, members)
    if "labels" in (options.get("weights"), options.get("server_weights")):
        inside += Link(up_bytes=members * sizes.label_counts)
    if options.get("server_weights") == "labels":  # their sums go on
        long += Link(up_bytes=who.sectors * sizes.label_counts)
    return Traffic(long, inside)


def _hold_out(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The validation set, relayed by sectors to every client."""
    if options.get("val_source", "server") != "server":
        return Traffic()
    return Traffic(*(Link(down_bytes=ends * sizes.validation) for ends in (who.sectors, who.clients)))


def _pooling(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Every row of every client, straight to the server."""
    link = Link(up_bytes=sizes.rows)
    return Traffic(link, link)


def _silent(who: Active, sizes: Payload, options: Options) -> Traffic:
    return Traffic()


# -- corrections and regularisers of local training


def _with_variates(who: Active, sizes: Payload, options: Options) -> Traffic:
    """SCAFFOLD: the model and the common variate down; up the model and, unless that is worked out, a change."""
    up = 1 if options.get("reconstruct") else 2
    ends = (who.sectors if options.get("through_sectors") else who.clients, who.clients)
    return Traffic(*(models(sizes, up * each, 2 * each, each) for each in ends))


def _sent_back(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Hierarchical SCAFFOLD: as hierarchical averaging, and the last average goes back to clients."""
    return _paced(who, sizes, options) + Traffic(sector_client=models(sizes, 0, who.clients))


def _paces(options: Options) -> dict[str, int]:
    return {"sector_rounds": int(options.get("sector_rounds", 2))}


def _paced(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Hierarchical averaging with as many sector rounds as these methods have by default."""
    return averaged(who, sizes, dict(options) | _paces(options))


def _mtgc(who: Active, sizes: Payload, options: Options) -> Traffic:
    """`round` tells the first one, which sends the model down first and has no y yet; `sectors` how many hold data,
    where not all of them take part.

    A leader's cost is that of the same people taking part in all of a round's sector rounds.
    """
    paces, first = _paces(options)["sector_rounds"], options.get("round", 2) == 1
    use_z, use_y = bool(options.get("use_z", True)), bool(options.get("use_y", True))
    redrawn = paces if options.get("sample") == "sector-round" else 1
    asked = options.get("z_init") in ("gradient", "stochastic") and (use_z or (use_y and first))  # gradients are
    held = use_y and not first  # y, at the hosts
    known = held or (use_y and asked)
    led = options.get("leader", "none") != "none"

    # For each client (that is not its own leader): up, and down.
    up = paces + asked
    down = redrawn * (1 + known) + (paces if use_z else 0 if redrawn > 1 else paces - 1) + (asked and use_z)
    talk = who.clients - who.sectors if led else who.clients
    inside = models(sizes, up * talk, down * talk, up * talk)
    if led:  # start, y and the new model to the leader, y back
        inside += models(sizes, who.sectors * use_y, who.sectors * (1 + held + use_y), who.sectors * use_y)
    both = asked and use_y and first  # gradients go on to the server
    sectors = int(options.get("sectors", who.sectors))
    up = who.sectors * (1 + both)
    return Traffic(models(sizes, up, sectors * (1 + first) + who.sectors * both, up), inside)


# -- distillation at the server


def _weighed(who: Active, sizes: Payload, options: Options) -> Traffic:
    """One model each way and, where these weigh, every client's label counts."""
    counted = Link(up_bytes=who.clients * sizes.label_counts if options.get("server_weights") == "labels" else 0)
    return straight(who, sizes, options) + Traffic(counted, counted)


# -- several models


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
    return Traffic(models(sizes, met, met, who.sectors), models(sizes, who.clients, who.clients))


def _eed(who: Active, sizes: Payload, options: Options) -> Traffic:
    through = bool(options.get("through_sectors"))
    sent = _relayed(who, sizes, options, by_turns=False) if through else straight(who, sizes, options)
    if options.get("server_weights") == "labels":
        up = pairs(who, options, by_turns=False) if through else who.clients
        sent += Traffic(Link(up_bytes=up * sizes.label_counts), Link(up_bytes=who.clients * sizes.label_counts))
    return sent


def _by_turns(who: Active, sizes: Payload, options: Options) -> Traffic:
    return _relayed(who, sizes, options, by_turns=True) if options.get("through_sectors") else flat(who, sizes, options)


def _framed(who: Active, sizes: Payload, options: Options) -> Traffic:
    """Straight, by cohorts through sectors, or twice by way of leaders; SCAFFOLD's variates go with the models."""
    led, times = options.get("ensemble") == "sector", 2 if options.get("local") == "scaffold" else 1
    members = who.clients - who.sectors if led else who.clients
    inside = models(sizes, times * members, times * members, members)
    if led:
        sent = (times + 1) * who.sectors
        if options.get("weights") == "labels":
            inside += Link(up_bytes=members * sizes.label_counts)
        return Traffic(models(sizes, sent, sent, 2 * who.sectors), inside)
    through, long = bool(options.get("through_sectors")), inside
    met = members
    if through:
        met = pairs(who, {"cohorts": 1, **options}, options.get("schedule") == "blocks")
        long = models(sizes, times * met, times * met, who.sectors)
    if options.get("server_weights") == "labels" and options.get("ensemble") != "none":
        inside += Link(up_bytes=members * sizes.label_counts)
        long += Link(up_bytes=met * sizes.label_counts)
    return Traffic(long, inside)


def _hold_out_with_leaders(who: Active, sizes: Payload, options: Options) -> Traffic:
    """The validation set at every client, where leaders are judged on it."""
    return _hold_out(who, sizes, options) if options.get("ensemble") == "sector" else Traffic()


# -- methods that look inside the network


def _generator(who: Active, sizes: Payload, options: Options) -> Traffic:
    """A model each way, label counts up, and a generator down except in the first round."""
    taught = who.clients if int(options.get("round", 2)) > 1 else 0
    further = Link(who.clients * sizes.label_counts, taught * sizes.generator, 0, taught)
    return straight(who, sizes, options) + Traffic(further, further)


def _matched(who: Active, sizes: Payload, options: Options) -> Traffic:
    """A model down and its layers up one by one; every layer but the last comes back matched, with a place a neuron.

    `layers` and `neurons` (hidden ones) are of the model; without them it has one hidden layer.
    """
    n, layers = who.clients, int(options.get("layers", 2))
    hidden = int(options.get("neurons", sizes.features // 4))
    last = sizes.classes * (sizes.features + 4)
    back = sizes.model - last + NUMBER * hidden if layers > 1 else 0
    link = Link(n * sizes.model, n * (sizes.model + back), 0, n, n * layers)
    return Traffic(link, link)


# One row per method. `options` are the method's own fields, `weights` and `server_weights` the teachers' weights.
FORMULAS: dict[str, Formula] = {
    "fedavg": Formula(FLAT, flat),
    "hfedavg": Formula("M, M | E·N, E·N", averaged),
    "fedhead": Formula("2M, 2M | N − M, N − M", _led, _hold_out),
    "fedhead+": Formula("2M, 2M | N − M, N − M", _led, _hold_out),
    "centralized": Formula("none (before: every row, on both links)", _silent, _pooling),
    "local": Formula("none (before: 0, N | 0, N)", _silent, start_at_clients),
    "fedprox": Formula(FLAT, flat),
    "fedavgm": Formula(FLAT, flat),
    "fednova": Formula(FLAT, flat),
    "feddyn": Formula(FLAT, flat),
    "scaffold": Formula("2N, 2N | 2N, 2N (through sectors 2M, 2M | 2N, 2N; reconstructed N up)", _with_variates),
    "mtgc": Formula("M, M | E·N, (E + 2)·N (first round: M, 2M)", _mtgc),
    "hfedprox": Formula("M, M | E·N, E·N", _paced),
    "hscaffold": Formula("M, M | E·N, (E + 1)·N", _sent_back),
    "hfeddyn": Formula("M, M | E·N, E·N", _paced),
    "feddf": Formula("N, N | N, N", _weighed),
    "fedbe": Formula("N, N | N, N", straight),
    "fed-ensemble": Formula(RELAYED, _by_turns),
    "fedeed": Formula(RELAYED, _eed),
    "frame": Formula(
        "N, N | N, N (through sectors P, P | N, N with P ≤ K·M; with leaders 2M, 2M | N − M, N − M)",
        _framed,
        _hold_out_with_leaders,
    ),
    **costs_knowledge.FORMULAS,
    "moon": Formula(FLAT, flat),
    "fedalign": Formula(FLAT, flat),
    "fedma": Formula("N, N | N, N (up layer by layer; matched layers down once more)", _matched),
    "fedgen": Formula("N, N | N, N (label counts up; from round 2 the generator down)", _generator),
}


def formula(method: str) -> Formula:
    if method not in FORMULAS:
        raise ConfigError(
            f"there is no cost formula for method {method!r}{nearest(method, FORMULAS)} "
            f"(known: {', '.join(FORMULAS)}); `headwater plan` counts the bytes of any method"
        )
    return FORMULAS[method]


def round_traffic(method: str, who: Active, sizes: Payload, options: Options | None = None) -> Traffic:
    """What one round of a method moves when these clients take part."""
    return formula(method).round(who, sizes, options or {})


def setup_traffic(method: str, everybody: Active, sizes: Payload, options: Options | None = None) -> Traffic:
    """What a method moves before its first round, when everybody who holds data is there.

    What is frozen in the model goes once to every sector, which passes it on to its clients.
    """
    once = [Link(down_bytes=ends * sizes.frozen) for ends in (everybody.sectors, everybody.clients)]
    return formula(method).setup(everybody, sizes, options or {}) + Traffic(*once)


def run_traffic(method: str, rounds: Iterable[Active], sizes: Payload, options: Options | None = None) -> Traffic:
    """A whole run without its setup: the sum over rounds of whoever took part in each."""
    numbered = enumerate(rounds, 1)
    return sum((round_traffic(method, who, sizes, {"round": n, **(options or {})}) for n, who in numbered), Traffic())
