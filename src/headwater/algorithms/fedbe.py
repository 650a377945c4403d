"""FedBE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State
from headwater.algorithms.cohorts import bundled
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import By, Params
from headwater.specs import DISTILL, LOCAL, STRICT, Count, DistillSpec, LocalSpec, Positive
from headwater.tasks.average import Sampler, average, sample_models
from headwater.tasks.distill import distill, distill_cost
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext, task


@dataclass(frozen=True, config=STRICT)
class FedBe(Method):
    """The clients' models, their average and models sampled around them teach the server's model on unlabelled data.

    Chen, Chao: FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning, ICLR 2021. The temperature that
    sharpens the teacher is `server.sharpen`, SWA is `server.swa_from` and `server.swa_every`.

    Cost: the server evaluates N + `samples` + 1 teachers on each reference sample.

    Differences from the paper and from its authors' code:
    * `server.swa_from = 500`, `server.swa_every = 25` are those of the code; shorter distillation is not averaged.

    Args:
        local: local training.
        server: distillation at the server, on the reference set.
        sampler: "gaussian" (paper) has the mean by samples and the variance of the clients' weights.
            "gaussian-as-coded" scales the clients' changes to unit length tensor by tensor, adds `scale` times their
            deviation as noise and restores their mean length. Neither adds noise to statistics of batch norm.
            "dirichlet" draws convex combinations of the clients' models.
        samples: M, models drawn per round.
        concentration: α of the Dirichlet distribution.
        scale: of the noise, for "gaussian-as-coded".
        with_average: the average teaches.
        with_clients: the clients' models teach.
        per_class: divide the loss by the number of classes, as the code does.
        by: weight of a client in the average and in the Gaussian.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedbe", data="digits", clients=4, rounds=1, samples=2, local__epochs=1, server__epochs=1)
        >>> run.ledger.round_trips("server_sector")
        4
    """

    INFO = MethodInfo(
        name="fedbe",
        family="ensemble",
        summary="clients and models sampled around them teach the server",
        stages=(
            "train from the global model",
            "clients, their mean and samples → server",
            "average, then distil at the server with averaged weights",
        ),
        models="N, N | N, N",
        moves={"a round": "server → client model; client → server model"},
        sees={"server": "every client's model", "host": "its clients' models", "client": "the global model"},
        needs=("reference data",),
        defaults={
            "server": {
                "optimizer": "sgd",
                "lr": 0.001,
                "momentum": 0.9,
                "weight_decay": 1e-05,
                "mix": "probs",
                "weights": "uniform",
                "sharpen": 0.5,
                "swa_from": 500,
                "swa_every": 25,
                "patience": None,
                "restore": "last",
            }
        },
    )

    local: LocalSpec = LOCAL
    server: DistillSpec = DISTILL
    sampler: Sampler = "gaussian"
    samples: Count = 10
    concentration: Positive = 1.0
    scale: Positive = 0.1
    with_average: bool = True
    with_clients: bool = True
    per_class: bool = False
    by: By = "samples"

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
        return State(fed.run(teach, at=SERVER, start=mean, teachers=bundled(members), spec=self.server))


@task("distill", cost=distill_cost, returns="start")
def distill_per_class(ctx: TaskContext, spec: DistillSpec, **inputs: Any) -> Params:
    """`distill` with its loss divided by the number of classes, as FedBE's code has it.

    Under SGD this equals a smaller step size with a larger weight decay: v ← βv + g/C + λw, w ← w − ηv becomes, with
    u = C·v, u ← βu + g + Cλw, w ← w − (η/C)u.
    """
    smaller = replace(spec, lr=spec.lr / ctx.classes, weight_decay=spec.weight_decay * ctx.classes)
    return distill(ctx, spec=smaller, **inputs)
