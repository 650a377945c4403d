"""The method: what is sent where in a round, and which task runs at which place."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.algorithms.base import Method, State
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located
from headwater.specs import LOCAL, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.local import local_train


@dataclass(frozen=True)
class Mine(Method):
    """Clients train, sectors average their clients' models, the server averages the sectors.

    Args:
        local: local training, from [local] in experiment.toml.
        sector_rounds: how often a sector averages before the server does; a key of [algorithm].
    """

    local: LocalSpec = LOCAL
    sector_rounds: int = 1

    def init(self, fed: Federation, model: Located) -> State:
        """Before round 1: the state is the initial model, at the server."""
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        """One round. `down` and `up` move values, and what they move is counted; `run` computes at a place."""
        models = fed.down(state.model)  # server → sectors
        for _ in range(self.sector_rounds):
            start = fed.down(models)  # sectors → their clients
            trained = fed.run(local_train, at=CLIENTS, start=start, spec=self.local)
            models = fed.run(average, at=SECTORS, models=fed.up(trained))
        return State(fed.run(average, at=SERVER, models=fed.up(models)))
