"""Agreement on public data: what models predict for it, the mean of that, and learning it, also with a second head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.core.params import By, Params
from headwater.data.base import Examples
from headwater.specs import LocalSpec
from headwater.tasks.cost import ITSELF, Cost, passes_through, shaped, training_cost
from headwater.tasks.optimizers import FusedOptimizer, Stepper, batches, total_steps
from headwater.tasks.sums import ArraySum
from headwater.tasks.task import TaskContext, task

Public = Examples | Tensor  # with labels if the public set has any


@dataclass(frozen=True)
class Rows:
    """Which rows of the public set are used.

    Args:
        most: how many at most.
        number: seed of the draw; clients with the same number use the same rows.
    """

    most: int
    number: int = 0

    def count(self, public: Public) -> int:
        """How many rows are used."""
        return min(self.most, len(public))

    def of(self, public: Public) -> Tensor:
        """The inputs of these rows."""
        x = public.x if isinstance(public, Examples) else public
        order = np.random.default_rng(self.number).permutation(len(x))[: self.most]
        return x[torch.from_numpy(order).to(x.device)]


@task(
    "distill",
    cost=lambda ctx, model, public, rows, **_: Cost(passes=passes_through([model], rows.count(public))),
    returns=lambda ctx, model, public, rows, **_: shaped(rows.count(public), ctx.classes, dtype=model.vector.dtype),
)
def predict(ctx: TaskContext, model: Params, public: Public, rows: Rows, temperature: float | None = None) -> Tensor:
    """Logits of a model for these rows or, with a temperature, soft predictions."""
    output = ctx.flat_module(model).outputs(rows.of(public))
    return output if temperature is None else torch.softmax(output / temperature, dim=1)


@task(
    "distill",
    streaming=("models",),
    cost=Cost(),
    returns=ITSELF,
    sums=("models", lambda **_: ArraySum(mean=True)),
)
def mean_of(ctx: TaskContext, models: Mapping[str, Tensor | tuple[Tensor, int]]) -> tuple[Tensor, int]:
    """The mean of predictions, in which every client counts alike, and the number of clients in it.

    A value in `models` is one client's predictions, or the mean of several with their number.
    """
    result, total = torch.zeros(()), 0
    for part in models.values():
        mean, count = part if isinstance(part, tuple) else (part, 1)
        total += count
        result = torch.lerp(result, mean, count / total) if total > count else mean
    return result, total


@task(
    "distill",
    cost=lambda ctx, start, public, target, rows, spec: (
        Cost() if target is None else training_cost(start, rows.count(public), spec)
    ),
    returns="start",
)
def digest(
    ctx: TaskContext, start: Params, public: Public, target: Tensor | None, rows: Rows, spec: LocalSpec
) -> Params:
    """Train a model towards these logits for these rows, by mean absolute error. Without a target nothing changes."""
    if target is None:
        return start
    x, net = rows.of(public), ctx.flat_module(start)
    stepper = Stepper(net, spec, total_steps(len(x), spec))
    losses: list[Tensor] = []
    for batch in batches(len(x), spec, ctx.rng, ctx.device):
        net.train(len(batch))
        loss = F.l1_loss(net(x[batch]), target[batch])
        losses.append(loss.detach())
        stepper.step(loss)
    if stepper.taken:
        ctx.note(digest_loss=float(np.cumsum(torch.stack(losses).tolist())[-1]) / stepper.taken)
    return net.params(start.weight)


# -- a second head, for classes that only public data has


def _digest_cost(
    ctx: TaskContext, start: Params, spec: LocalSpec, rows: Rows, target: Any = None, **given: Any
) -> Cost:
    return Cost() if target is None else training_cost(start, rows.count(given["public"]), spec)


@task("distill", cost=_digest_cost, returns=lambda ctx, start, head, **_: {"model": start, "head": head})
def digest_with_head(
    ctx: TaskContext,
    start: Params,
    head: Params,
    public: Public,
    target: Tensor | None,
    rows: Rows,
    spec: LocalSpec,
    by: By = "samples",
) -> dict[str, Params]:
    """Train an extractor and its second head towards these predictions for these rows, by cross-entropy.

    Without a target nothing changes.

    Returns:
        `model`, and `head` with the weight of a model that this home trains.
    """
    found = {"model": start, "head": head} if target is None else _both(ctx, start, head, rows.of(public), target, spec)
    return found | {"head": replace(found["head"], weight=float(ctx.samples) if by == "samples" else 1.0)}


@task(
    "train",
    cost=lambda ctx, start, head, spec: training_cost(start, len(ctx.inputs), spec),
    returns=lambda ctx, start, head, spec: {"model": start, "head": head},
)
def pretrain_with_head(ctx: TaskContext, start: Params, head: Params, spec: LocalSpec) -> dict[str, Params]:
    """Train an extractor and its second head at the server on public inputs and the labels of their own classes."""
    assert ctx.own_labels is not None
    return _both(ctx, start, head, ctx.inputs, ctx.own_labels, spec)


def _both(
    ctx: TaskContext, start: Params, head: Params, x: Tensor, target: Tensor, spec: LocalSpec
) -> dict[str, Params]:
    net, top = ctx.flat_module(start), ctx.flat_module(head)
    stepper, other = Stepper(net, spec, total_steps(len(x), spec)), FusedOptimizer(spec, top.flat)
    for batch in batches(len(x), spec, ctx.rng, ctx.device):
        net.train(len(batch))
        top.grad.zero_()
        rate = stepper.lr()
        stepper.step(F.cross_entropy(top(net.features(x[batch])), target[batch]))
        other.step(top.grad, rate)
    return {"model": net.params(start.weight), "head": top.params(head.weight)}


@task(
    "distill",
    cost=lambda ctx, model, public, rows, **_: Cost(passes=passes_through([model], rows.count(public))),
    returns=lambda ctx, model, head, public, rows: (
        shaped(rows.count(public), dict(head.layout.trainable)["bias"][0], dtype=model.vector.dtype),
        ctx.samples,
    ),
)
def predict_with_head(ctx: TaskContext, model: Params, head: Params, public: Public, rows: Rows) -> tuple[Tensor, int]:
    """Predictions of a model's second head for these rows, and this home's samples, by which they are averaged."""
    features = ctx.flat_module(model).represent(rows.of(public))
    return torch.softmax(ctx.flat_module(head).outputs(features), dim=1), ctx.samples
