"""FedAlign."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from headwater.algorithms.base import LocalState, Method, MethodInfo, gather, kept, spread
from headwater.core.federation import CLIENTS, Federation, Located
from headwater.core.params import By
from headwater.models.base import ModelSpec
from headwater.models.parts import layers_before
from headwater.models.slim import channels, last_stage, run, thin, untouched
from headwater.specs import LOCAL, STRICT, AtLeastOne, LocalSpec, NotNegative
from headwater.tasks.local import Batch, local_train

TINY = 1e-12  # least eigenvalue, since the square root of 0 has no gradient


@dataclass(frozen=True, config=STRICT)
class FedAlign(Method):
    """Clients align the Lipschitz constant of the network's last stage with that of a thinner copy of the same stage.

    Mendieta, Yang, Wang, Lee, Ding, Chen: Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning,
    CVPR 2022. The stage is all residual blocks of the last width (`layer4` of ResNet-18, `layer3` of ResNet-56 in the
    authors' code) or the last convolution; in a perceptron it is the last hidden layer.

    Differences from the paper and from its authors' code:
    * The thin copy takes the first channels of every layer of the stage and of its input, as in the code, rounded to
      whole channels; the code rounds to multiples of its own.
    * As in the code, batch norm of the thin pass uses the statistics of the batch and does not update the running ones.
      The stage's input and full output are computed a second time, without gradient and without updating them.
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
        summary="the last stage is aligned with a thinner copy of itself",
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
        last_stage(layers_before(spec.outline(), spec.head, "fedalign"), "fedalign")  # refuses a model without one
        return {}

    def init(self, fed: Federation, model: Located) -> LocalState:
        return LocalState(model)

    def round(self, fed: Federation, state: LocalState) -> LocalState:
        start, term = spread(fed, state.model, self.through_sectors), Steepness(self.mu, self.width, self.iterations)
        local = fed.run(local_train, at=CLIENTS, start=start, spec=self.local, terms=(term,), by=self.by)
        mine = kept(fed, self.keep_local, state, local)
        return LocalState(gather(fed, local, self.through_sectors), mine)


@plain_dataclass(frozen=True)
class Steepness:
    """mu · (loss / d) · d with d = mean (s_thin − s_full)², where s stands for a stage's Lipschitz constant.

    No gradient flows through the stage's input, s_full and the factor loss / d. So the term's value is always
    mu · loss, and its gradient is that of d, rescaled. Where d is 0 there is nothing to align and the term is 0.
    """

    mu: float
    width: float
    iterations: int

    def __call__(self, step: Batch) -> Tensor:
        if not self.mu:
            return step.loss.new_zeros(())
        features = step.net.layers("fedalign")
        before, stage = last_stage(features, "fedalign")
        with torch.no_grad(), untouched(features):
            inside = run(before, step.x)
            full = steepness(inside, run(stage, inside), self.iterations)
        some = inside[:, : channels(inside.shape[1], self.width)]
        apart = F.mse_loss(steepness(some, thin(stage, some, self.width), self.iterations), full)
        ratio = (step.loss / apart).detach()
        return self.mu * torch.where(torch.isfinite(ratio), ratio, 0.0) * apart


def steepness(inside: Tensor, outside: Tensor, iterations: int) -> Tensor:
    """An estimate of the Lipschitz constant of the map from `inside` to `outside`, one number per sample.

    The root of the largest eigenvalue of T·Tᵀ, where T is the product of both maps over their pixels.
    """
    matrix = transmitting(inside, outside)
    return top_eigenvalue(matrix @ matrix.transpose(1, 2), iterations).clamp_min(TINY).sqrt()


def transmitting(inside: Tensor, outside: Tensor) -> Tensor:
    """(samples, channels in, channels out): mean over pixels of input times output; the input is pooled to fit."""
    if inside.dim() == 4:
        inside = F.adaptive_avg_pool2d(inside, (outside.shape[2], outside.shape[3]))
    before, after = (maps.reshape(*maps.shape[:2], -1) for maps in (inside, outside))
    return before @ after.transpose(1, 2) / before.shape[2]


def top_eigenvalue(matrices: Tensor, iterations: int) -> Tensor:
    """Of each symmetric matrix, by power iterations from the vector of ones."""
    vector = torch.ones_like(matrices[:, :, :1])
    norm = vector[:, :1]
    for _ in range(iterations):
        moved = matrices @ vector
        norm = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
        vector = moved / norm.clamp_min(TINY)
    return norm[:, 0, 0]
