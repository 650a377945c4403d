"""Consensus on public data (FedMD): predictions of models, their mean, and training towards the mean."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.specs import LocalSpec
from headwater.tasks.cost import ITSELF, Cost, passes_through, shaped, training_cost
from headwater.tasks.local import Batch
from headwater.tasks.optimizers import Stepper, batches, samples_read, total_steps
from headwater.tasks.task import TaskContext, task

Public = Examples | Tensor  # with labels if the public set has any


@task("average", returns=ITSELF)
def about_public(ctx: TaskContext) -> tuple[int, bool]:
    """Number of rows of the public set, and whether they have labels."""
    return len(ctx.inputs), ctx.labels is not None


@task("average", returns=ITSELF, shows_rows=True)
def public(ctx: TaskContext) -> Public:
    """The public set, as a value that can be moved."""
    return ctx.inputs if ctx.labels is None else Examples(ctx.inputs, ctx.labels)


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
        return x[torch.from_numpy(order)]


@task(
    "distill",
    cost=lambda ctx, model, public, rows, **_: Cost(passes=passes_through([model], rows.count(public))),
    returns=lambda ctx, model, public, rows, **_: shaped(rows.count(public), ctx.classes, dtype=model.vector.dtype),
)
def predict(ctx: TaskContext, model: Params, public: Public, rows: Rows, temperature: float | None = None) -> Tensor:
    """Logits of a model for these rows or, with a temperature, soft predictions."""
    output = ctx.flat_module(model).outputs(rows.of(public))
    return output if temperature is None else torch.softmax(output / temperature, dim=1)


@task("distill", streaming=("models",), cost=Cost(), returns=ITSELF)
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


def _digest_cost(
    ctx: TaskContext, start: Params, public: Public, target: Tensor | None, rows: Rows, spec: LocalSpec
) -> Cost:
    return Cost() if target is None else training_cost(start, rows.count(public), spec)


@task("distill", cost=_digest_cost, returns="start")
def digest(
    ctx: TaskContext, start: Params, public: Public, target: Tensor | None, rows: Rows, spec: LocalSpec
) -> Params:
    """Train a model towards these logits for these rows, by mean absolute error. Without a target nothing changes."""
    if target is None:
        return start
    x, net = rows.of(public), ctx.flat_module(start)
    stepper = Stepper(net, spec, total_steps(len(x), spec))
    total = 0.0
    for batch in batches(len(x), spec, ctx.rng):
        net.train(len(batch))
        loss = F.l1_loss(net(x[batch]), target[batch])
        total += float(loss.detach())
        stepper.step(loss)
    if stepper.taken:
        ctx.note(digest_loss=total / stepper.taken)
    return net.params(start.weight)


@dataclass(frozen=True)
class Heed:
    """weight · mean KL(target ‖ softmax_T(model)) on a batch of public rows, the next one at every step."""

    weight: float
    public: Any
    target: Any  # soft predictions for the rows, or None
    rows: Rows
    batch: int
    temperature: float = 0.5
    x: Tensor | None = None  # the rows and the batches in turn, set by `begin`
    turns: Iterator[Tensor] | None = None

    def cost(self, ctx: TaskContext, start: Params, rows: int, steps: int) -> Cost:
        """A public batch in addition to each private one."""
        if self.target is None:
            return Cost()
        return Cost(samples=samples_read(self.rows.count(self.public), LocalSpec(steps=steps, batch=self.batch)))

    def begin(self, ctx: TaskContext, start: Params) -> Self:
        if self.target is None:
            return self
        x = self.rows.of(self.public)
        order = torch.from_numpy(ctx.rng.permutation(len(x)))  # so that short trainings do not always see the same rows
        return replace(self, x=x, turns=itertools.cycle(torch.split(order, self.batch)))

    def __call__(self, step: Batch) -> Tensor:
        if self.x is None or self.turns is None:
            return step.loss.new_zeros(())
        batch = next(self.turns)
        step.net.train(len(batch))  # a public batch may be smaller than the private one
        prediction = torch.log_softmax(step.net(self.x[batch]) / self.temperature, dim=1)
        return self.weight * F.kl_div(prediction, self.target[batch], reduction="batchmean")
