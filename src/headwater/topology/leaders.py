"""Who sits for each sector this round. A rule reads the view and names one client for each sector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from headwater.federation import Federation

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
