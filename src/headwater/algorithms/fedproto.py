"""Every client keeps a model of its own; clients share the mean representation of each class and are drawn towards the
mean of these.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train the own model towards prototypes | class means of all clients → every client | none |

| paper | here |
|---|---|
| λ | lam |
| C^(j), the mean of C_i^(j) | prototypes[j] |
| d, the distance | distance |

Cost a round: d numbers a class each way, and a count of 8 bytes with each on the way up; nothing comes down in the
first round. Before it every client gets its starting model. `share_params` adds FedAvg's models and spares that; with
`through_sectors`, sectors pool (and average) on the way.
Moves before the first round: server → client model.
Moves a round: server → client numbers; client → server numbers.

Differences from the paper and from its authors' code:
* `distance`: "code", the mean-squared error over samples and coordinates, which lam = 1 goes with, or "paper", the
  Euclidean one, which pulls far harder. (The text compares a client's mean with the prototype, the code each sample;
  samples are compared here.)
* `collect`: prototypes are made after training, as the text says, or "during" the last epoch of it, as the code does.
* `by`: a client weighs by its samples of the class (paper), or alike (code).
* `share_params`: models are averaged too, as FedHKD's comparison does it; then there is a global model.
* The original trains one epoch a round with SGD, lr 0.01, momentum 0.5; here [local] follows the data.
* Clients may have unequal nets (`model.also`) if their representations are of one size.

>>> import headwater as hw
>>> run = hw.run("fedproto", data="digits", clients=4, rounds=2, local__epochs=1)
>>> run.history[0]["bytes"]["sector_client"]["down"]
0
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from headwater.algorithms.base import gather, own_models, spread
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, maybe, nothing
from headwater.core.params import By
from headwater.errors import ConfigError
from headwater.specs import LOCAL, STRICT, LocalSpec, NotNegative
from headwater.tasks.knowledge import Norms, Pull, pool, prototypes, settled, train_collecting, width
from headwater.tasks.local import local_train


@plain_dataclass(frozen=True)
class ProtoState:
    personal: Located  # at clients
    prototypes: Located  # at the server: {class: (representation,)}
    model: Located | None = None  # at the server, with `share_params`


@dataclass(frozen=True, config=STRICT)
class FedProto:
    local: LocalSpec = LOCAL
    lam: NotNegative = 1.0  # λ, on the distance to prototypes
    distance: Norms = "code"
    collect: Literal["after", "during"] = "after"
    by: By = "samples"  # how clients weigh, in prototypes and in the mean of models
    share_params: bool = False  # average models too
    through_sectors: bool = False  # pool and average at sectors on the way

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {}
    NEEDS: ClassVar[tuple[str, ...]] = ("features",)
    UNLIKE: ClassVar[bool] = True

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
            made = fed.run(train_collecting, at=CLIENTS, **asked)
            mine, shared = made["model"], made["prototypes"]
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
            told = ", ".join(f"{arch} {size}" for arch, size in sizes.items())
            raise ConfigError(
                f"fedproto compares representations, whose sizes differ between the nets of model.also ({told}); "
                "choose nets with equal ones, or set model.projection to give all of them one size"
            )
