"""Clients align the steepness of the last block with that of a thinner copy of itself.

Mendieta, Yang, Wang, Lee, Ding, Chen: Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning, CVPR
2022.

| stage 1, local | stage 2, who teaches → where | stage 3, consolidation |
|---|---|---|
| train from the one model, with aligned Lipschitz constants | nobody | average at the server |

| paper | here |
|---|---|
| μ, ω | mu, width |
| block L | the last residual block or convolution; of a perceptron the last hidden layer |
| Lipschitz constants by power iteration | iterations |

Cost a round, in models (N active clients, M sectors; up, down): long link N, N and inside sectors N, N; M, M and N, N
with `through_sectors`.
Moves a round: server → client model; client → server model.

Differences from the paper and from its authors' code:
* The thin copy takes the first channels of every layer of the block and of its input, as the code does, rounded to
  whole ones; the code rounds to multiples of its own.
* The thin pass leaves running statistics alone; the code writes them for the channels it uses. The block's input is
  computed a second time, without gradient.
* SGD with momentum 0.9, rate 0.01, decay 1e-4 and clip 10 are the defaults of `[local]` here; Nesterov's momentum,
  which the code uses, is not offered.
* Both losses go into one backward pass, which adds the same gradients as the code's two.
* `by="uniform"` weighs clients alike.

>>> import headwater as hw
>>> hw.run("fedalign", data="digits", clients=4, rounds=1, local__epochs=1).history[0]["round"]
1
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Le
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import LocalState, gather, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located
from headwater.core.params import By
from headwater.models.base import ModelSpec
from headwater.models.parts import layers_before
from headwater.models.slim import last_block
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, NotNegative
from headwater.tasks.local import local_train
from headwater.tasks.terms.lipschitz import Steepness


@dataclass(frozen=True, config=STRICT)
class FedAlign:
    local: LocalSpec = LOCAL
    mu: NotNegative = 0.45  # weight of the alignment, relative to the loss itself
    width: Annotated[float, Gt(0), Le(1)] = 0.25  # share of channels in the thin copy
    iterations: AtLeastOne = 10  # of the power method
    by: By = "samples"  # how clients weigh in the mean
    through_sectors: bool = False  # average at sectors on the way
    keep_local: bool = False  # judge local accuracy by clients' models as trained, before they are averaged

    SUITS: ClassVar[dict[str, dict[str, Any]]] = {
        "local": {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "clip": 10.0}
    }
    NEEDS: ClassVar[tuple[str, ...]] = ("features",)

    def models(self, spec: ModelSpec) -> dict[str, ModelSpec]:
        last_block(layers_before(spec.outline(), spec.head, "fedalign"), "fedalign")  # refuses a model without one
        return {}

    def init(self, fed: Federation, model: Located) -> LocalState:
        return LocalState(model)

    def round(self, fed: Federation, state: LocalState) -> LocalState:
        start, term = spread(fed, state.model, self.through_sectors), Steepness(self.mu, self.width, self.iterations)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=(term,), by=self.by)
        mine = kept(fed, self.keep_local, state, local)
        return LocalState(gather(fed, local, self.through_sectors), mine)
