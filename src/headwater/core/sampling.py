"""Which clients do what in a round: who takes part, which cohort trains which of several models, who leads a sector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from headwater.core.rng import stream
from headwater.core.tree import Tree

if TYPE_CHECKING:
    from headwater.core.federation import Federation, Located

Remainder = Literal["front", "main"]
Cohorts = dict[int, tuple[str, ...]]  # model number → its clients; a model without clients is left out
Leader = Literal["random", "fixed", "rotating"]


def participants(tree: Tree, share: float, seed: int, round: int) -> tuple[str, ...]:
    """Clients of a round: max(1, round(share · N)) drawn uniformly from those that hold data, in tree order.

    Args:
        tree: the tree.
        share: share of the clients, as `partition.participation`.
        seed: seed of the run.
        round: number of the round.
    """
    holders = tree.holders
    if share >= 1:
        return tuple(holders)
    count = max(1, round_half_up(share * len(holders)))
    drawn = stream(seed, "participation", round).choice(len(holders), size=count, replace=False)
    return tuple(f"c{number}" for number in holders.numbers[np.sort(drawn)].tolist())


def round_half_up(number: float) -> int:
    """Round halves up (2.5 gives 3), where Python's `round` goes to the even number."""
    return int(number + 0.5)


def deal(
    clients: Sequence[str], cohorts: int, rng: np.random.Generator, remainder: Remainder = "front", first: int = 0
) -> Cohorts:
    """Random split into cohorts of equal size, each in the order of `clients`.

    Args:
        clients: clients of the round, in tree order.
        cohorts: number of cohorts.
        rng: random generator.
        remainder: clients left over go one each to the first cohorts ("front") or all to the first ("main").
        first: number of the first cohort.
    """
    order = rng.permutation(len(clients))
    each, left = divmod(len(clients), cohorts)
    extra = [left] + [0] * (cohorts - 1) if remainder == "main" else [int(k < left) for k in range(cohorts)]
    ends = np.cumsum([0, *(each + more for more in extra)])
    dealt = {first + k: sorted(order[ends[k] : ends[k + 1]]) for k in range(cohorts)}
    return {k: tuple(clients[i] for i in members) for k, members in dealt.items() if members}


def turns(clients: Sequence[str], cohorts: int, seed: int, round: int) -> Cohorts:
    """Cohorts by turns: in a block of `cohorts` rounds each client trains each model once.

    The order of a client's models is its own and is drawn again for every block.
    """
    block, turn = divmod(round - 1, cohorts)
    turn_of = {c: int(stream(seed, "turns", block, c).permutation(cohorts)[turn]) for c in clients}
    by_model = {k: tuple(c for c in clients if turn_of[c] == k) for k in range(cohorts)}
    return {k: members for k, members in by_model.items() if members}


# -- leaders


def choose(rule: Leader, fed: Federation) -> dict[str, str]:
    """Leaders of this round by sector, for `fed.seat`.

    Args:
        rule: "random" (p_k / p_m, drawn every round), "fixed" (the client with the most data) or "rotating" (in turn,
            in tree order).
        fed: the view of the round.
    """
    if rule == "random":
        generator = fed.rng("leader")
        return {sector: _by_size(fed, team, generator) for sector, team in fed.teams.items()}
    if rule == "fixed":
        return {sector: max(team, key=lambda client: fed.sizes[client]) for sector, team in fed.teams.items()}
    return {sector: team[(fed.round - 1) % len(team)] for sector, team in fed.teams.items()}


def _by_size(fed: Federation, team: Sequence[str], generator: np.random.Generator) -> str:
    """One of these clients, drawn by p_k."""
    sizes = np.array([fed.sizes[client] for client in team], dtype=float)
    return str(generator.choice(team, p=sizes / sizes.sum()))


def vacant(fed: Federation, results: Located) -> tuple[str, ...]:
    """Sectors that lost their leader during this task and have a client that has not led in this round. Waits.

    Only where clients are separate parties: a simulated loss costs the sector its round. A sector whose host is lost
    cannot get a new leader.
    """
    lost = fed.missing(results) if fed.losing else ()
    gone: frozenset[str] = getattr(fed.session.engine, "gone", frozenset())
    return tuple(sector for sector in lost if sector not in gone and _left(fed, sector))


def reseat(fed: Federation, sectors: Sequence[str]) -> tuple[Federation, Federation]:
    """Seat another leader in each of these sectors, drawn by p_k among clients that have not led in this round.

    Returns:
        The view with the new leaders, and the view of these sectors only.
    """
    generator = fed.rng("leader", len(fed.sat))
    seats = {sector: _by_size(fed, _left(fed, sector), generator) for sector in sectors}
    fed = fed.seat(seats)
    return fed, fed.among(c for c in fed.clients if fed.tree.sector_of[c] in seats)


def _left(fed: Federation, sector: str) -> list[str]:
    return [client for client in fed.teams.get(sector, ()) if client not in fed.sat]
