"""Fed-ensemble."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, Team
from headwater.algorithms.cohorts import Models, drawn_models, gather_by, renewed, spread_by
from headwater.core.federation import CLIENTS, Federation, Located
from headwater.core.params import By
from headwater.core.sampling import turns
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, Positive
from headwater.tasks.local import local_train


@plain_dataclass(frozen=True)
class EnsembleState:
    members: Models  # at the server
    model: None = None

    @property
    def team(self) -> Team:
        return Team({str(k): member for k, member in self.members.items()}, "probs")


@dataclass(frozen=True, config=STRICT)
class FedEnsemble(Method):
    """Several models are trained in turn, each by every client once in K rounds if all take part. They predict
    together.

    Shi, Lai, Al Kontar, Chowdhury: Fed-ensemble: Ensemble Models in Federated Learning for Improved Generalization and
    Uncertainty Quantification, IEEE Transactions on Automation Science and Engineering, 2023. An age of the paper is a
    block of K rounds; the permutation of a client is the order in which it trains the models, drawn for each block.

    There is no single model: accuracy is that of the mean of all models' probabilities. Cost: through sectors P counts
    pairs of a sector and a model that has a client in it, so P ≤ K·M.

    Differences from the paper and from its authors' code:
    * Every client draws an order of its own; the paper's strata, whose clients share one, are not implemented.
    * The code draws new orders after the first round of a block, so its blocks begin one round later.
    * The code multiplies the learning rate by 0.99 before every tenth round, the first one included: `lr_decay = 0.99`,
      `lr_decay_every = 10`, here from the eleventh round on.

    Args:
        local: local training.
        cohorts: K, models that are trained in turn.
        by: weight of a client in the mean; the code has "uniform".
        lr_decay: factor of the learning rate; None: no decay.
        lr_decay_every: rounds from one decay to the next.
        through_sectors: sectors average the clients of each model first.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fed-ensemble", data="digits", clients=4, cohorts=2, rounds=1, local__epochs=1)
        >>> run.history[0]["accuracy"] == run.history[0]["ensemble_accuracy"]
        True
    """

    INFO = MethodInfo(
        name="fed-ensemble",
        family="ensemble",
        summary="several models, each trained by every client in turn",
        stages=("train from the model whose turn it is", "all models together predict", "average by model"),
        models="N, N | N, N (through sectors P, P | N, N with P ≤ K·M)",
        moves={
            "a round": "server → client model; client → server model",
            "a round through sectors": (
                "server → sector model; sector → client model; client → sector model; sector → server model"
            ),
        },
        sees={
            "server": "every client's model, and which of the K models it trained",
            "host": "the same of its clients",
            "client": "one of the K models",
        },
    )

    local: LocalSpec = LOCAL
    cohorts: AtLeastOne = 5
    by: By = "samples"
    lr_decay: Positive | None = None
    lr_decay_every: AtLeastOne = 10
    through_sectors: bool = False

    def init(self, fed: Federation, model: Located) -> EnsembleState:
        return EnsembleState(drawn_models(fed, model, self.cohorts))

    def round(self, fed: Federation, state: EnsembleState) -> EnsembleState:
        cohorts = turns(fed.clients, self.cohorts, fed.session.seed, fed.round)
        start = spread_by(fed, state.members, cohorts, self.through_sectors)
        decay = (self.lr_decay or 1.0) ** ((fed.round - 1) // self.lr_decay_every)
        spec = replace(self.local, lr=self.local.lr * decay)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=spec, by=self.by)
        means = gather_by(fed, local, cohorts, self.through_sectors)
        return EnsembleState(renewed(fed, state.members, means))
