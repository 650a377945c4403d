"""Clients train from one model; the server averages what comes back.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model | nobody | average at the server |

| paper | here |
|---|---|
| E, B, η | local.epochs, local.batch, local.lr |
| C | partition.participation |
| n_k | the weight that travels with a model |

Cost a round, in models (N active clients, M sectors; up, down): long link N, N and inside sectors N, N, since a
sector is a wire to a method that does not use it; M, M and N, N with `through_sectors`.
Moves a round: server → client model; client → server model.
Moves a round through sectors: server → sector model; sector → client model; client → sector model; sector → server
model.

Differences from the paper: none in the method. `by="uniform"` weighs clients alike, as several published codes do.

>>> import headwater as hw
>>> hw.run("fedavg", data="digits", clients=4, rounds=1, local__epochs=1).history[0]["round"]
1
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import LocalState, gather, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, LocalSpec
from headwater.tasks.local import local_train


@dataclass(frozen=True, config=STRICT)
class FedAvg:
    local: LocalSpec = LOCAL
    by: By = "samples"  # how clients weigh in the mean
    through_sectors: bool = False  # average at sectors on the way
    keep_local: bool = False  # judge local accuracy by clients' models as trained, before they are averaged

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def init(self, fed: Federation, model: Located) -> LocalState:
        return LocalState(model)

    def round(self, fed: Federation, state: LocalState) -> LocalState:
        start = spread(fed, state.model, self.through_sectors)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, by=self.by)
        mine = kept(fed, self.keep_local, state, local)
        return LocalState(gather(fed, local, self.through_sectors), mine)
