"""Stage 1: training on a home's own labels, with gradient corrections and extra loss terms that compose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headwater.core.params import By, Params
from headwater.data.base import Examples
from headwater.specs import LocalSpec
from headwater.tasks.augment import augmented
from headwater.tasks.batched.trainer import prepare_together, train_together
from headwater.tasks.cost import ITSELF, Cost, shaped, shaped_rows, training_cost
from headwater.tasks.flat_module import FlatModule, precise
from headwater.tasks.optimizers import Stepper, batches, picked, steps_per_epoch, total_steps
from headwater.tasks.row_gradients import train_by_rows
from headwater.tasks.task import TaskContext, task


@dataclass(frozen=True)
class Batch:
    """One gradient step, as a loss term sees it.

    Args:
        ctx: where training runs.
        net: the model that is trained.
        start: the model that training began with.
        x: inputs of this batch.
        y: labels of this batch.
        output: logits of this batch.
        loss: loss of this batch, before any term.
        index: the batch's rows in the home's data.
        epoch: number of this epoch, from 0.
        last: whether this is the last epoch.
        known: outputs of the extractor, for terms that declare FEATURES.
    """

    ctx: TaskContext
    net: FlatModule
    start: Params
    x: Tensor
    y: Tensor
    output: Tensor
    loss: Tensor
    index: Tensor
    epoch: int = 0
    last: bool = False
    known: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """Outputs of the extractor for this batch; present if a term declares FEATURES."""
        assert self.known is not None
        return self.known


class Term(Protocol):
    """An addition to the loss of one batch: a frozen dataclass, whose fields may be values of the home.

    A class may also have:

    - `FEATURES = True`: then the step has `features`.
    - `begin(ctx, start)`: called once before the first step; returns the term that is used from then on.
    - `cost(ctx, start, rows, steps)`: a `Cost` with the samples and passes that the term adds to a training with so
      many rows and steps, for `plan`.
    """

    def __call__(self, step: Batch) -> Tensor: ...


def local_cost(
    ctx: TaskContext,
    start: Params,
    spec: LocalSpec,
    terms: tuple[Term, ...] = (),
    data: Examples | None = None,
    **_: Any,
) -> Cost:
    """Cost of `local_train` and of tasks that train as it does: that of the steps and of the loss terms."""
    rows = ctx.samples if data is None else len(data)
    cost = training_cost(start, rows, spec)
    for term in terms:
        if hasattr(term, "cost"):
            more: Cost = term.cost(ctx, start, rows, cost.steps)
            cost = replace(cost, samples=cost.samples + more.samples, passes={**cost.passes, **more.passes})
    return cost


@task(
    "train",
    together=train_together,
    prepare=prepare_together,
    stacked=True,
    cost=local_cost,
    returns="start",
    update="start",
    takes_bound=True,
)
def local_train(
    ctx: TaskContext,
    start: Params,
    spec: LocalSpec,
    corrections: tuple[Tensor | Params | None, ...] = (),
    terms: tuple[Term, ...] = (),
    data: Examples | None = None,
    by: By = "samples",
    bound: float = 0.0,
) -> Params:
    """Train a model on the home's own rows, with a fresh optimiser.

    Args:
        ctx: where it runs.
        start: the model to begin with.
        spec: how long and how: epochs or steps, batch size, optimiser.
        corrections: vectors that are added to every gradient; None counts as zero.
        terms: additions to the loss.
        data: rows to train on in place of the home's own.
        by: "samples" gives the result as many samples as it was trained on as its weight, "uniform" gives it 1, so
            that means of means are right either way.
        bound: largest norm of the update in this round, which is kept after the task; 0: as `[privacy]` says.

    Returns:
        The trained model.

    Raises:
        LookupError: the home holds no training data.
    """
    rows = data if data is not None else ctx.data
    if rows is None:
        raise LookupError(f"{ctx.home} holds no training data")
    if ctx.privacy.row_clip:
        return train_by_rows(ctx, start, rows, spec, corrections, terms, by)
    terms = tuple(term.begin(ctx, start) if hasattr(term, "begin") else term for term in terms)
    in_two_parts = any(getattr(term, "FEATURES", False) for term in terms)
    net = ctx.flat_module(start)
    added = [c.trainable if isinstance(c, Params) else c for c in corrections if c is not None]
    total, epoch = total_steps(len(rows), spec), steps_per_epoch(len(rows), spec)
    stepper = Stepper(net, spec, total, sum(added[1:], added[0]) if added else None)
    known = net.represent(rows.x) if net.fixed and spec.augment == "none" else None
    losses: list[Tensor] = []
    sizes: list[int] = []
    for batch in batches(len(rows), spec, ctx.rng, ctx.device):
        x, y = augmented(picked(rows.x, batch), spec.augment, ctx.augment_rng), picked(rows.y, batch)
        net.train(len(batch))
        features = picked(known, batch) if known is not None else net.features(x) if in_two_parts else None
        output = net(x) if features is None else net.classify(features)
        loss = net.loss(output, y)
        losses.append(loss.detach())  # read at the end: to read one is to wait for the device
        sizes.append(len(batch))
        if terms:
            now = stepper.taken // epoch
            last = now == (total - 1) // epoch
            step = Batch(ctx, net, start, x, y, output, loss, batch, now, last, features)
            loss = loss + sum(term(step) for term in terms)
        stepper.step(loss)
    if sizes:
        ctx.note(loss=_mean(torch.stack(losses).view(-1), sizes))
    return net.params(weight=float(len(rows)) if by == "samples" else 1.0)


def _mean(losses: Tensor, sizes: list[int]) -> float:
    """Mean over all samples, added up batch after batch in the precision of the losses."""
    kind = np.float64 if losses.dtype == torch.float64 else np.float32
    with np.errstate(all="ignore"):  # a training that diverges is reported elsewhere
        return float(np.cumsum(np.array(losses.tolist(), kind) * np.array(sizes, kind))[-1]) / sum(sizes)


@task("train", cost=Cost(), returns=lambda ctx: shaped(ctx.classes, dtype=torch.float64))
def label_counts(ctx: TaskContext) -> Tensor:
    """Number of samples of each class at this home. Whoever receives it learns the home's label distribution."""
    assert ctx.data is not None
    return precise(torch.bincount(ctx.data.y, minlength=ctx.classes))


@task("train", cost=Cost(), returns=lambda ctx: shaped_rows(ctx.samples, ctx.table), shows_rows=True)
def own_rows(ctx: TaskContext) -> Examples:
    """The home's training data itself, for centralised training only."""
    assert ctx.data is not None
    return ctx.data


@task("train", cost=Cost(), returns=ITSELF)
def pooled(ctx: TaskContext, rows: Mapping[str, Examples]) -> Examples:
    """The data of several homes as one set."""
    return Examples(torch.cat([r.x for r in rows.values()]), torch.cat([r.y for r in rows.values()]))
