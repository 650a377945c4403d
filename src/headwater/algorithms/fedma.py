"""FedMA."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated

from annotated_types import Ge, Lt
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, State
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
class FedMa(Method):
    """Neurons are matched across clients layer by layer before they are averaged. The layers after a matched one are
    retrained.

    Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni: Federated Learning with Matched Averaging, ICLR 2020. BBP-MAP of the
    paper is the task `match_layer`, Π of a client is `places`, and W of a layer is a matrix with one row per neuron,
    bias included.

    Cost: the model goes up layer by layer. In addition each matched layer (all but the last) and the positions of a
    client's neurons (one number per neuron) come down. A round is one cycle over the L layers, so it makes L round
    trips with every client.

    Differences from the paper and from its authors' code:
    * A model keeps its width for a whole run (see `spare`). Clients train the neurons that were added; those
      of the paper return to their first width in every round.
    * How often a global neuron is used counts as the paper derives it; the code halves this and limits the count to 10.
    * The model is sent whole at the start of a round; `[local]` is also the training after each matched layer.
    * Clients start from one model; those of the paper start from models of their own.

    Args:
        local: local training, at the start and after each matched layer.
        gamma: γ, mass of the Beta process: how readily new neurons appear.
        sigma: σ, standard deviation of clients' neurons around a global one.
        sigma0: σ0, standard deviation of global neurons around 0.
        sweeps: passes over the clients after the first assignment.
        spare: share of each hidden layer that is empty at first, for the global model to grow into, up to the width of
            `[model]`. With 0 neurons are matched one to one.
        shrink: include the prior in the mean, a pull towards 0, as the code does.
        by: weight of a client in the mean of the last layer.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedma", data="digits", clients=4, rounds=1, local__epochs=1, model__hidden=[16])
        >>> run.ledger.round_trips("server_sector")
        8
    """

    INFO = MethodInfo(
        name="fedma",
        family="averaging",
        summary="neurons are matched layer by layer before averaging",
        stages=("train the layers that are not frozen yet", "nobody", "match and average layer by layer"),
        models="N, N | N, N (up layer by layer; matched layers down once more)",
        moves={"a round": "server → client model; client → server array; server → client array"},
        sees={
            "server": "every client's layers, one at a time",
            "host": "the same of its clients",
            "client": "matched layers, and the positions of its neurons in them",
        },
        defaults={"model": {"name": "mlp"}},
        features=True,
    )

    local: LocalSpec = LOCAL
    gamma: Positive = 7.0
    sigma: Positive = 1.0
    sigma0: Positive = 1.0
    sweeps: Count = 5
    spare: Annotated[float, Ge(0), Lt(1)] = 0.0
    shrink: bool = False
    by: By = "samples"

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
