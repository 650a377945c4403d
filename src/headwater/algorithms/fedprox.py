"""FedAvg whose clients are pulled towards the model that they received, so that long or unequal training strays less.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model, pulled to it | nobody | average at the server |

| paper | here |
|---|---|
| μ | mu |
| E | local.epochs |
| share of stragglers | stragglers |

Cost a round, in models (N active clients, M sectors; up, down): long link N, N and inside sectors N, N; M, M and N, N
with `through_sectors`.
Moves a round: server → client model; client → server model.

Differences from the paper and from its authors' code:
* The pull is the paper's (mu / 2) · ‖w − received‖², over all that is trained. Two imitations in other papers' programs
  are not copied: one multiplies it by mu a second time, one takes the norm without its square.
* `stragglers`: with this probability a client trains, in this round, for a random shorter number of epochs (or steps),
  at least 1, drawn for each round and client. What it managed is used, where FedAvg would have left it out.
* The paper averages the chosen clients alike, drawing them by size; here size is in the mean (`by="uniform"` is alike).
* `mu` is 0.01 unless given, one of the values that the paper tries.

>>> import headwater as hw
>>> hw.run("fedprox", data="digits", clients=4, rounds=1, local__epochs=1, mu=0.1).history[0]["round"]
1
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import LocalState, gather, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located, each
from headwater.core.params import By
from headwater.specs import LOCAL, STRICT, LocalSpec, NotNegative
from headwater.tasks.local import local_train
from headwater.tasks.terms.proximal import Proximal


@dataclass(frozen=True, config=STRICT)
class FedProx:
    local: LocalSpec = LOCAL
    mu: NotNegative = 0.01  # strength of the pull
    stragglers: Annotated[float, Ge(0), Le(1)] = 0.0  # share of clients that train for less long
    by: By = "samples"  # how clients weigh in the mean
    through_sectors: bool = False  # average at sectors on the way
    keep_local: bool = False  # judge local accuracy by clients' models as trained, before they are averaged

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def init(self, fed: Federation, model: Located) -> LocalState:
        return LocalState(model)

    def round(self, fed: Federation, state: LocalState) -> LocalState:
        start = spread(fed, state.model, self.through_sectors)
        work = each({client: self._work(fed, client) for client in fed.clients})
        pull = (Proximal(self.mu),)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=work, terms=pull, by=self.by)
        mine = kept(fed, self.keep_local, state, local)
        return LocalState(gather(fed, local, self.through_sectors), mine)

    def _work(self, fed: Federation, client: str) -> LocalSpec:
        """What this client manages in this round."""
        rng = fed.rng("stragglers", client)
        whole = self.local.epochs if self.local.epochs is not None else self.local.steps or 0
        if rng.random() >= self.stragglers or whole < 2:
            return self.local
        less = int(rng.integers(1, whole))
        return replace(self.local, epochs=less) if self.local.epochs is not None else replace(self.local, steps=less)
