"""Hierarchical FedProx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State
from headwater.core.federation import CLIENTS, SECTORS, SERVER, Federation, Located
from headwater.core.params import By, Params, average_of
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, NotNegative
from headwater.tasks.average import average
from headwater.tasks.cost import first_of
from headwater.tasks.local import local_train
from headwater.tasks.task import TaskContext, task
from headwater.tasks.terms import Proximal


@dataclass(frozen=True, config=STRICT)
class HFedProx(Method):
    """Hierarchical FedAvg with a proximal term: clients are pulled towards their sector's model.

    FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020) in the hierarchy, a baseline in the program of
    MTGC (Fang, Han, Chen, Wang, Brinton: Hierarchical Federated Learning with Multi-Timescale Gradient Correction,
    NeurIPS 2024).

    The centre of the pull is the sector's model and is renewed with it.

    Differences: in that program the global model is the plain mean of all clients' last models, whatever their sizes
    (`server_mean = "clients"`).

    Args:
        local: local training.
        sector_rounds: E, averages at sectors per global round.
        mu: μ, strength of the pull, as in the program.
        by: weight of a client in its sector and of a sector at the server; "uniform" is the objective of MTGC's text.
        server_mean: the global model is the mean of the "sectors" by their weights, or the plain mean over all
            "clients", to which sectors send the plain means of theirs.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("hfedprox", data="digits", clients=4, sectors=2, rounds=1, local__epochs=1)
        >>> run.ledger.round_trips("sector_client")
        8
    """

    INFO = MethodInfo(
        name="hfedprox",
        family="tree",
        summary="hierarchical FedAvg, clients pulled towards their sector's model",
        stages=(
            "train from the sector's model, pulled towards it",
            "nobody",
            "average at sectors several times, then at the server",
        ),
        models="M, M | E·N, E·N",
        moves={"a round": "server → sector model; sector → client model; client → sector model; sector → server model"},
        sees={"server": "sectors' means", "host": "its clients' models", "client": "its sector's model"},
        strengths=("mu",),
    )

    local: LocalSpec = LOCAL
    sector_rounds: AtLeastOne = 2
    mu: NotNegative = 1e-4
    by: By = "samples"
    server_mean: Literal["sectors", "clients"] = "sectors"

    def reference_models(self) -> int:
        return 1

    def init(self, fed: Federation, model: Located) -> State:
        return State(model)

    def round(self, fed: Federation, state: State) -> State:
        mean, pull = fed.down(state.model), (Proximal(self.mu),)
        for _ in range(self.sector_rounds):  # inside sectors, without the server
            local = fed.run(local_train, at=CLIENTS, start=fed.down(mean), spec=self.local, terms=pull)
            mean = fed.run(average, at=SECTORS, models=fed.up(local), by=self.by)
        if self.server_mean == "clients":
            plain = fed.run(plain_mean, at=SECTORS, models=fed.up(local))
            return State(fed.run(average, at=SERVER, models=fed.up(plain)))
        return State(fed.run(average, at=SERVER, models=fed.up(mean), by=self.by))


@task("average", returns=first_of("models"))
def plain_mean(ctx: TaskContext, models: Mapping[str, Params]) -> Params:
    """The mean of models that weigh alike; its weight is how many there are."""
    return replace(average_of(models, "uniform"), weight=float(len(models)))
