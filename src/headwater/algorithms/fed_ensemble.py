"""Several models are trained by turns, each by every client once in as many rounds if all take part, and predict
together.

Shi, Lai, Al Kontar, Chowdhury: Fed-ensemble: Ensemble Models in Federated Learning for Improved Generalization and
Uncertainty Quantification, IEEE Transactions on Automation Science and Engineering, 2023.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the model whose turn it is | all models together predict | average by model |

| paper | here |
|---|---|
| K | cohorts |
| age, a block of K rounds | rounds 1 … K, K + 1 … 2K, and so on |
| permutation of a client | the order in which it trains the models, drawn for each block |

Cost a round, in models (N active clients, P pairs of a sector and a model that has a client in it, so P ≤ K·M; up,
down): long link N, N; inside sectors N, N. Through sectors P, P and N, N.
Moves a round: server → client model; client → server model.
Moves a round through sectors: server → sector model; sector → client model; client → sector model; sector → server
model.

There is no single model: accuracy is that of the mean of all models' probabilities.

Differences from the paper and from its authors' code:
* Every client draws an order of its own; the paper's strata of clients, which share one, are not here.
* The code draws new orders after the first round of a block, so its blocks begin one round later than here.
* The code multiplies the learning rate by 0.99 before every tenth round, the first one included: `lr_decay = 0.99`,
  `lr_decay_every = 10` (off by default), here from the eleventh round on.
* Clients weigh by samples; the code weighs them alike (`by = "uniform"`).

>>> import headwater as hw
>>> run = hw.run("fed-ensemble", data="digits", clients=4, cohorts=2, rounds=1, local__epochs=1)
>>> run.history[0]["accuracy"] == run.history[0]["ensemble_accuracy"]
True
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Team
from headwater.algorithms.cohorts import Models, gather_by, renewed, spread_by
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import By
from headwater.core.sampling import turns
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, Positive
from headwater.tasks.average import initial
from headwater.tasks.local import local_train


@plain_dataclass(frozen=True)
class EnsembleState:
    members: Models  # at the server
    model: None = None

    @property
    def team(self) -> Team:
        return Team({str(k): member for k, member in self.members.items()}, "probs")


@dataclass(frozen=True, config=STRICT)
class FedEnsemble:
    local: LocalSpec = LOCAL
    cohorts: AtLeastOne = 5  # K, models that are trained by turns
    by: By = "samples"  # how clients weigh in the mean
    lr_decay: Positive | None = None  # times the learning rate
    lr_decay_every: AtLeastOne = 10  # rounds
    through_sectors: bool = False

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}

    def init(self, fed: Federation, model: Located) -> EnsembleState:
        arch = fed.tree.archs[0]
        drawn = {k: fed.run(initial, at=SERVER, arch=arch, number=k) for k in range(1, self.cohorts)}
        return EnsembleState({0: model} | drawn)

    def round(self, fed: Federation, state: EnsembleState) -> EnsembleState:
        cohorts = turns(fed.clients, self.cohorts, fed.session.seed, fed.round)
        start = spread_by(fed, state.members, cohorts, self.through_sectors)
        decay = (self.lr_decay or 1.0) ** ((fed.round - 1) // self.lr_decay_every)
        spec = replace(self.local, lr=self.local.lr * decay)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=spec, by=self.by)
        means = gather_by(fed, local, cohorts, self.through_sectors)
        return EnsembleState(renewed(fed, state.members, means))
