"""Leader rules: each names one client per sector for a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from headwater.core.federation import Federation, Located

Leader = Literal["random", "fixed", "rotating"]
Seats = dict[str, str]


def choose(rule: Leader, fed: Federation) -> Seats:
    """Leaders of this round by sector, for `fed.seat`.

    Args:
        rule: "random" (p_k / p_m, drawn every round), "fixed" (the largest client) or "rotating" (in turn).
        fed: the view of the round.
    """
    return {"random": random, "fixed": fixed, "rotating": rotating}[rule](fed)


def random(fed: Federation) -> Seats:
    """A client leads with probability p_k / p_m, drawn afresh every round."""
    generator = fed.rng("leader")
    return {
        sector: str(generator.choice(team, p=np.array([fed.sizes[c] for c in team]) / sum(fed.sizes[c] for c in team)))
        for sector, team in fed.teams.items()
    }


def fixed(fed: Federation) -> Seats:
    """The client with the most data leads in every round."""
    return {sector: max(team, key=lambda c: fed.sizes[c]) for sector, team in fed.teams.items()}


def rotating(fed: Federation) -> Seats:
    """Clients lead in turn, in tree order."""
    return {sector: team[(fed.round - 1) % len(team)] for sector, team in fed.teams.items()}


def vacant(fed: Federation, made: Located) -> tuple[str, ...]:
    """Sectors that lost their leader during this task and have a client that has not led in this round. Waits.

    Only where clients are separate parties: a simulated loss costs the sector its round. A sector whose host is lost
    cannot get a new leader.
    """
    lost = fed.missing(made) if fed.losing else ()
    gone: frozenset[str] = getattr(fed.session.engine, "gone", frozenset())
    return tuple(sector for sector in lost if sector not in gone and _left(fed, sector))


def reseat(fed: Federation, sectors: Sequence[str]) -> tuple[Federation, Federation]:
    """Seat another leader in each of these sectors, drawn by p_k among clients that have not led in this round.

    Returns:
        The view with the new leaders, and the view of these sectors only.
    """
    generator = fed.rng("leader", len(fed.sat))
    seats = {}
    for sector in sectors:
        team = _left(fed, sector)
        shares = np.array([fed.sizes[c] for c in team], dtype=float)
        seats[sector] = str(generator.choice(team, p=shares / shares.sum()))
    fed = fed.seat(seats)
    return fed, fed.among(c for c in fed.clients if fed.tree.sector_of[c] in seats)


def _left(fed: Federation, sector: str) -> list[str]:
    return [client for client in fed.teams.get(sector, ()) if client not in fed.sat]
