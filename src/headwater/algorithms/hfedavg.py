"""Sectors average their clients several times before the server averages sectors.

Liu, Zhang, Song, Letaief: Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020. The baseline of FedHEAD and
MTGC.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the sector's model | nobody | average at sectors E times, then at the server |

| paper | here |
|---|---|
| κ1 local steps | local.epochs or local.steps |
| κ2 (MTGC: E) | sector_rounds |

Cost a round, in models (N active clients, M sectors; up, down): long link M, M; inside sectors E·N, E·N.
Moves a round: server → sector model; sector → client model; client → sector model; sector → server model.

Differences: MTGC's objective weighs sectors and clients alike (`by="uniform"`), the original and MTGC's code by
samples (default). With `sector_rounds = 1` and `by="samples"` the result is FedAvg's.

>>> import headwater as hw
>>> run = hw.run("hfedavg", data="digits", clients=4, sectors=2, rounds=1, sector_rounds=2, local__epochs=1)
>>> run.ledger.round_trips("server_sector")
2
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec
from headwater.tasks.average import average
from headwater.tasks.local import local_train


@dataclass(frozen=True, config=STRICT)
class HFedAvg:
    local: LocalSpec = LOCAL
    sector_rounds: AtLeastOne = 1  # E, averages at sectors in one global round
    by: By = "samples"  # how clients weigh in their sector, and sectors at the server

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def init(self, fed: Federation, model: Located) -> State:
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        mean = fed.down(state.model)
        for _ in range(self.sector_rounds):  # the server is not asked
            local = fed.run(local_train, at=CLIENTS, start=fed.down(mean), spec=self.local)
            mean = fed.run(average, at=SECTORS, models=fed.up(local), by=self.by)
        return State(fed.run(average, at=SERVER, models=fed.up(mean), by=self.by))
