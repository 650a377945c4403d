"""Neurons are matched across clients layer by layer and only then averaged; what follows a matched layer is retrained.

Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni: Federated Learning with Matched Averaging, ICLR 2020.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train the layers that are not frozen yet | nobody | match and average layer by layer |

| paper | here | | paper | here |
|---|---|---|---|---|
| γ, σ², σ0² | gamma, sigma², sigma0² | | BBP-MAP | match_layer |
| Π of a client | places | | W of a layer | a matrix, one row a neuron with its bias |

Cost a round, in models (N active clients; up, down): long link N, N and inside sectors N, N, where the model goes up
layer by layer; besides, each matched layer (all but the last) and where a client's neurons went (one number a neuron)
come down. A round is one cycle over the L layers, so L round trips with every client.
Moves a round: server → client model; client → server array; server → client array.

Differences from the paper and from its authors' code:
* A model has one width for a whole run here. With `spare` = 0 there is no room to grow and neurons are matched one to
  one; above 0 that share of each hidden layer is empty at first and the global model grows into it, up to the width
  of [model]. Clients train what has grown, where the paper's go back to their first width every round.
* The mean of matched neurons is that of the clients alone; `shrink` adds the prior, a pull towards 0, as the code does.
* How often a global neuron is used counts as the paper derives it; the code halves this and caps the count at 10.
* The model is sent whole at the start of a round; `[local]` also rules the training after each matched layer.
* Clients start from one model; the paper's train from models of their own.

>>> import headwater as hw
>>> run = hw.run("fedma", data="digits", clients=4, rounds=1, local__epochs=1, model__hidden=[16])
>>> run.ledger.round_trips("server_sector")
8
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import State
from headwater.core.federation import CLIENTS, SERVER, Federation, Located
from headwater.core.params import By
from headwater.models.base import ModelSpec
from headwater.models.slim import weighted
from headwater.specs import LOCAL, STRICT, Count, LocalSpec, Positive
from headwater.tasks.local import local_train
from headwater.tasks.matching import Prior, assembled, depth, layer_of, match_layer, retrain, with_room


@plain_dataclass(frozen=True)
class MaState(State):
    layers: int  # of the model


@dataclass(frozen=True, config=STRICT)
class FedMa:
    local: LocalSpec = LOCAL
    gamma: Positive = 7.0  # mass of the Beta process: how readily new neurons appear
    sigma: Positive = 1.0  # spread of clients' neurons around a global one
    sigma0: Positive = 1.0  # spread of global neurons around 0
    sweeps: Count = 5  # over the clients after the first assignment
    spare: Annotated[float, Ge(0), Lt(1)] = 0.0  # share of each hidden layer kept empty for new neurons
    shrink: bool = False  # let the prior count in the mean
    by: By = "samples"  # how clients weigh in the last layer's mean

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {"model": {"name": "mlp"}}
    NEEDS: ClassVar[tuple[str, ...]] = ("features",)

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        weighted(spec.outline(), "fedma")  # refuses what it cannot match
        return {}

    def init(self, fed: Federation, model: Located) -> MaState:
        if self.spare:
            model = fed.run(with_room, at=SERVER, model=model, share=self.spare)
        return MaState(model, fed.read(fed.run(depth, at=SERVER, model=model)))

    def round(self, fed: Federation, state: MaState) -> MaState:
        prior = Prior(self.gamma, self.sigma, self.sigma0, self.sweeps, self.shrink)
        local = fed.run(local_train, at=CLIENTS, start=fed.down(state.model, to=CLIENTS), spec=self.local)
        done: list[Located] = []
        for number in range(state.layers - 1):
            sent = fed.up(fed.run(layer_of, at=CLIENTS, model=local, number=number), to=SERVER)
            matched = fed.run(match_layer, at=SERVER, layers=sent, clients=fed.clients, prior=prior)
            done.append(matched["layer"])
            local = fed.run(
                retrain,
                at=CLIENTS,
                model=local,
                layer=fed.down(matched["layer"], to=CLIENTS),
                places=fed.down({client: matched["places"][client] for client in fed.clients}),
                number=number,
                spec=self.local,
            )
        last = fed.up(fed.run(layer_of, at=CLIENTS, model=local, number=state.layers - 1), to=SERVER)
        sizes = {client: fed.sizes[client] for client in fed.clients}
        model = fed.run(
            assembled, at=SERVER, model=state.model, matched=tuple(done), last=last, sizes=sizes, by=self.by
        )
        return replace(state, model=model)
