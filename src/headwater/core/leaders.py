"""Who sits for each sector this round. A rule reads the view and names one client for each sector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from headwater.core.federation import Federation, Located

Leader = Literal["random", "fixed", "rotating"]
Seats = dict[str, str]


def choose(rule: Leader, fed: Federation) -> Seats:
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
    """The sectors whose leader was lost over this, and that have a client who has not led in this round yet. Waits.

    Only where clients are parties of their own: a loss that is simulated costs the sector its round. A sector that is
    lost itself has nobody who could lead it.
    """
    lost = fed.missing(made) if fed.losing else ()
    gone: frozenset[str] = getattr(fed.session.engine, "gone", frozenset())
    return tuple(sector for sector in lost if sector not in gone and _left(fed, sector))


def reseat(fed: Federation, sectors: Sequence[str]) -> tuple[Federation, Federation]:
    """Another client leads each of these sectors, drawn by p_k among those who have not; and the view of just these."""
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
