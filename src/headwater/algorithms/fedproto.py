"""FedProto."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import Method, MethodInfo, gather, own_models, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.errors import ConfigError
from headwater.specs import LOCAL, STRICT, LocalSpec, NotNegative
from headwater.tasks.knowledge import pool, prototypes, settled, train_collecting, width
from headwater.tasks.local import local_train
from headwater.tasks.terms import Norms, Pull


@plain_dataclass(frozen=True)
class ProtoState:
    personal: Located  # at clients
    prototypes: Located  # at the server: {class: (representation,)}
    model: Located | None = None  # at the server, with `share_params`


@dataclass(frozen=True, config=STRICT)
class FedProto(Method):
    """Every client keeps a model of its own. Clients share the mean representation of each class and are pulled towards
    the mean of these prototypes.

    Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI
    2022. C^(j) of the paper, the mean of C_i^(j), is `prototypes[j]`.

    Cost: d numbers per class each way (d: size of a representation), and a count of 8 bytes with each on the way up.
    Nothing comes down in the first round; before it every client gets its starting model. `share_params` adds FedAvg's
    models and omits that start.

    Differences from the paper and from its authors' code:
    * The text compares a client's mean with the prototype, the code each sample; samples are compared here.
    * The original trains one epoch per round with SGD, lr 0.01, momentum 0.5; here `[local]` follows the data.
    * Clients may have different networks (`model.also`) if their representations have the same size.

    Args:
        local: local training.
        lam: λ, weight of the distance to prototypes.
        distance: "code", the mean-squared error over samples and coordinates, to which lam = 1 belongs; or "paper", the
            Euclidean distance, which pulls far harder.
        collect: compute prototypes "after" training, as the text says, or "during" its last epoch, as the code does.
        by: weight of a client: its samples of the class (paper), or "uniform" (code).
        share_params: average models too, as FedHKD's comparison does; then there is a global model.
        through_sectors: sectors pool prototypes (and average models) first.

    Example:
        >>> import headwater as hw
        >>> run = hw.run("fedproto", data="digits", clients=4, rounds=2, local__epochs=1)
        >>> run.history[0]["bytes"]["sector_client"]["down"]
        0
    """

    INFO = MethodInfo(
        name="fedproto",
        family="knowledge",
        summary="personal models share class prototypes",
        stages=("train the client's own model towards prototypes", "class means of all clients → every client", "none"),
        models="no model (before: 0, N | 0, N), k·d numbers each way",
        moves={
            "before the first round": "server → client model",
            "a round": "server → client numbers; client → server numbers",
        },
        sees={
            "server": "of each class of a client a mean representation and a count; no model",
            "host": "the same of its clients",
            "client": "pooled prototypes",
        },
        needs=("client state",),
        mixed_architectures=True,
        features=True,
        personal=True,
        training_cost=1.1,
    )

    local: LocalSpec = LOCAL
    lam: NotNegative = 1.0
    distance: Norms = "code"
    collect: Literal["after", "during"] = "after"
    by: By = "samples"
    share_params: bool = False
    through_sectors: bool = False

    def init(self, fed: Federation, model: Located) -> ProtoState:
        if len(fed.tree.archs) > 1:
            self._check_nets(fed)
        if self.share_params:
            return ProtoState(nothing(CLIENTS), nothing(SERVER), model)
        return ProtoState(own_models(fed, model), nothing(SERVER))

    def round(self, fed: Federation, state: ProtoState) -> ProtoState:
        through = self.through_sectors
        start = state.personal if state.model is None else spread(fed, state.model, through)
        known = spread(fed, state.prototypes, through)
        terms = (Pull(self.lam, maybe(known), self.distance),) if self.lam else ()
        asked = {"start": start, "spec": self.local, "terms": terms, "by": self.by}
        if self.collect == "during":
            trained = fed.run(train_collecting, at=CLIENTS, **asked)
            mine, shared = trained["model"], trained["prototypes"]
        else:
            mine = fed.run(local_train, at=CLIENTS, **asked)
            shared = fed.run(prototypes, at=CLIENTS, model=mine, by=self.by)
        pooled = gather(fed, shared, through, task=pool)
        model = None if state.model is None else gather(fed, mine, through)
        return ProtoState(fed.update(state.personal, mine), fed.run(settled, at=SERVER, known=pooled), model)

    def _check_nets(self, fed: Federation) -> None:
        if self.share_params:
            raise ConfigError("algorithm.share_params averages models, which must be alike; remove it or model.also")
        sizes = {arch: fed.read(fed.run(width, at=SERVER, arch=arch)) for arch in fed.tree.archs}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{arch} {size}" for arch, size in sizes.items())
            raise ConfigError(
                f"fedproto compares representations, whose sizes differ between the nets of model.also ({listed}); "
                "choose nets with equal ones, or set model.projection to give all of them one size"
            )
