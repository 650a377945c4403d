"""The clients' models, their average and models sampled around them teach the server's model on unlabelled data.

Chen, Chao: FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning, ICLR 2021.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model | clients, their mean and samples → server | average, then distil with averaged weights |

| paper | here |
|---|---|
| M sampled models | samples |
| Gaussian, Dirichlet | sampler |
| α of the Dirichlet distribution | concentration |
| temperature that sharpens the teacher | server.sharpen |
| SWA | server.swa_from, server.swa_every |

Cost a round, in models (N active clients; up, down): long link N, N; inside sectors N, N. The server asks N + samples +
1 teachers about each reference sample.
Moves a round: server → client model; client → server model.

Differences from the paper and from its authors' code:
* `sampler = "gaussian"` is the paper's: the mean by samples, with the variance of the clients' weights. The code
  ("gaussian-as-coded") makes the clients' deltas unit length tensor by tensor, adds `scale` times their deviation as
  noise and gives them back their mean length. Neither adds noise to batch-norm statistics here.
* The code divides the loss by the number of classes as well (`per_class`, off by default).
* `[server] swa_from = 500, swa_every = 25` are the code's; fewer steps than that are not averaged.
* `with_average = false`, `with_clients = false` and `samples = 0` leave a kind of teacher out.

>>> import headwater as hw
>>> run = hw.run("fedbe", data="digits", clients=4, rounds=1, samples=2, local__epochs=1, server__epochs=1)
>>> run.ledger.round_trips("server_sector")
4
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State
from headwater.algorithms.cohorts import together
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import By
from headwater.specs import DISTILL, LOCAL, STRICT, Count, DistillSpec, LocalSpec, Positive
from headwater.tasks.average import average
from headwater.tasks.distill import distill
from headwater.tasks.local import local_train
from headwater.tasks.model_sampling import Sampler, distill_per_class, sample_models


@dataclass(frozen=True, config=STRICT)
class FedBe:
    local: LocalSpec = LOCAL
    server: DistillSpec = DISTILL
    sampler: Sampler = "gaussian"
    samples: Count = 10  # models drawn in a round
    concentration: Positive = 1.0  # of the Dirichlet distribution
    scale: Positive = 0.1  # of the noise, for "gaussian-as-coded"
    with_average: bool = True  # whether the average teaches
    with_clients: bool = True  # whether the clients' models teach
    per_class: bool = False  # divide the loss by the number of classes
    by: By = "samples"  # how clients weigh in the average and in the Gaussian

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {
        "server": {"optimizer": "sgd", "lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-5, "mix": "probs"}
        | {"weights": "uniform", "sharpen": 0.5, "swa_from": 500, "swa_every": 25, "patience": None, "restore": "last"}
    }

    def __post_init__(self) -> None:
        if not (self.samples or self.with_average or self.with_clients):
            raise ValueError("nobody is left to teach; set samples above 0, with_average or with_clients")
        if self.server.weights == "labels":
            raise ValueError(
                "server.weights = 'labels' needs label counts, which sampled models have not; use 'uniform'"
            )
        if self.per_class and (self.server.optimizer != "sgd" or self.server.clip is not None):
            raise ValueError("per_class makes steps of sgd smaller; use server.optimizer = 'sgd' and no server.clip")

    def init(self, fed: Federation, model: Located) -> State:
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        start = fed.down(state.model, to=CLIENTS)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local)
        team = fed.up(local, to=SERVER)
        mean = fed.run(average, at=SERVER, models=team, by=self.by)
        options = {"sampler": self.sampler, "concentration": self.concentration, "scale": self.scale, "by": self.by}
        drawn = fed.run(sample_models, at=SERVER, models=team, count=self.samples, base=state.model, **options)
        members = {"average": mean} if self.with_average else {}
        members |= {f"sample {i}": drawn[i] for i in range(self.samples)}
        members |= {"clients": team} if self.with_clients else {}
        teach = distill_per_class if self.per_class else distill
        return State(fed.run(teach, at=SERVER, start=mean, teachers=together(members), spec=self.server))
