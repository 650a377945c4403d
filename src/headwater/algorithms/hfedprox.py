"""Hierarchical FedAvg whose clients are pulled towards their sector's model.

FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020) at two paces, a baseline in the program of MTGC (Fang,
Han, Chen, Wang, Brinton: Hierarchical Federated Learning with Multi-Timescale Gradient Correction, NeurIPS 2024).

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the sector's model, pulled to it | nobody | average at sectors several times, then at the server |

| program | here |
|---|---|
| μ | mu |
| E | sector_rounds |

Cost a round, in models (N active clients, M sectors; up, down): long link M, M; inside sectors E·N, E·N.
Moves a round: server → sector model; sector → client model; client → sector model; sector → server model.

Differences from the program: none known in the pull, whose centre is the sector's model and is renewed with it, and
whose `mu` is 1e-4. Weights are by samples at both tiers; `by="uniform"` is MTGC's objective.

>>> import headwater as hw
>>> run = hw.run("hfedprox", data="digits", clients=4, sectors=2, rounds=1, local__epochs=1)
>>> run.ledger.round_trips("sector_client")
8
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, NotNegative
from headwater.tasks.average import average
from headwater.tasks.local import local_train
from headwater.tasks.terms.proximal import Proximal


@dataclass(frozen=True, config=STRICT)
class HFedProx:
    local: LocalSpec = LOCAL
    sector_rounds: AtLeastOne = 2  # E, averages at sectors in one global round
    mu: NotNegative = 1e-4  # strength of the pull
    by: By = "samples"  # how clients weigh in their sector, and sectors at the server

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def init(self, fed: Federation, model: Located) -> State:
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        mean, pull = fed.down(state.model), (Proximal(self.mu),)
        for _ in range(self.sector_rounds):  # the server is not asked
            local = fed.run(local_train, at=CLIENTS, start=fed.down(mean), spec=self.local, terms=pull)
            mean = fed.run(average, at=SECTORS, models=fed.up(local), by=self.by)
        return State(fed.run(average, at=SERVER, models=fed.up(mean), by=self.by))
