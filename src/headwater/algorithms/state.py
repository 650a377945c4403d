"""States that methods keep between rounds, and which models of a state are tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.core.federation import Located
from headwater.specs import Mix, Weights


@dataclass(frozen=True)
class State:
    """State of a method between rounds. A method that keeps more extends it.

    Every field is a handle or a plain value.

    Three further attributes (fields or properties) are optional and are tested after a round: `personal`, clients' own
    models; `team`, models at the server that predict together; `also`, further models at the server by name. A fourth,
    `others`, has models at the server by name that a run leaves at its end beside the global one.

    Args:
        model: the global model, at the server: what is evaluated and written at the end.
    """

    model: Located


@dataclass(frozen=True)
class LocalState(State):
    """A global model and, with the option `keep_local`, clients' models as trained, for tests on their own rows."""

    personal: Located | None = None


@dataclass(frozen=True)
class PersonalState:
    """Every client has a model of its own; there is no global one."""

    personal: Located  # at clients
    model: None = None


@dataclass(frozen=True)
class Team:
    """Models at the server that predict together.

    Args:
        members: the models, one by one or as the mapping that came to the server.
        mix: what is averaged over members.
        weights: how much each member counts.
        left: whether a run that has a global model leaves the members too; not where they are single clients' models.
    """

    members: Mapping[str, Located] | Located
    mix: Mix = "probs"
    weights: Weights = "uniform"
    left: bool = False


@dataclass(frozen=True)
class Outputs:
    """Models of a state that are tested after a round, or left at the end. Absent ones are None or empty."""

    model: Located | None
    personal: Located | None
    team: Team | None
    also: Mapping[str, Located]
    others: Mapping[str, Located]


def outputs(state: Any) -> Outputs:
    """Return the models of a state. Optional attributes of a state are read only here."""
    model, personal, team = (getattr(state, name, None) for name in ("model", "personal", "team"))
    also, others = (getattr(state, name, None) or {} for name in ("also", "others"))
    return Outputs(model, personal, team, also, others)
