"""FedAlign."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt, Le
from pydantic.dataclasses import dataclass

from headwater.algorithms.base import LocalState, Method, MethodInfo, gather, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located
from headwater.core.params import By
from headwater.models.base import ModelSpec
from headwater.models.parts import layers_before
from headwater.models.slim import last_block
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, NotNegative
from headwater.tasks.local import local_train
from headwater.tasks.terms.lipschitz import Steepness


@dataclass(frozen=True, config=STRICT)
class FedAlign(Method):
    """Clients align the Lipschitz constant of the network's last block with that of a thinner copy of the same block.

    Mendieta, Yang, Wang, Lee, Ding, Chen: Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning,
    CVPR 2022. Block L is the last residual block or convolution; in a perceptron it is the last hidden layer.

    Differences from the paper and from its authors' code:
    * The thin copy takes the first channels of every layer of the block and of its input, as in the code, rounded to
      whole channels; the code rounds to multiples of its own.
    * The thin pass does not change running statistics; the code writes those of the channels that it uses. The block's
      input is computed a second time, without gradient.
    * SGD with momentum 0.9, rate 0.01, weight decay 1e-4 and clip 10 are the defaults of `[local]`. Nesterov momentum,
      as in the code, is not available.
    * Both losses share one backward pass, which adds up the same gradients as the code's two passes.

    Args:
        local: local training.
        mu: μ, weight of the alignment relative to the loss.
        width: ω, share of channels in the thin copy.
        iterations: of the power method that estimates Lipschitz constants.
        by: weight of a client in the mean: its number of samples, or "uniform".
        through_sectors: sectors average their clients' models first.
        keep_local: test clients' models as they were trained, before averaging, on the clients' own test rows.

    Example:
        >>> import headwater as hw
        >>> hw.run("fedalign", data="digits", clients=4, rounds=1, local__epochs=1).history[0]["round"]
        1
    """

    INFO = MethodInfo(
        name="fedalign",
        family="averaging",
        summary="the last block is aligned with a thinner copy of itself",
        stages=("train from the global model, with aligned Lipschitz constants", "nobody", "average at the server"),
        models="N, N | N, N (through sectors M, M | N, N)",
        moves={"a round": "server → client model; client → server model"},
        sees={"server": "every client's model", "host": "its clients' models", "client": "the global model"},
        defaults={"local": {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0001, "clip": 10.0}},
        features=True,
        strengths=("mu",),
        training_cost=1.6,
    )

    local: LocalSpec = LOCAL
    mu: NotNegative = 0.45
    width: Annotated[float, Gt(0), Le(1)] = 0.25
    iterations: AtLeastOne = 10
    by: By = "samples"
    through_sectors: bool = False
    keep_local: bool = False

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
