"""Stage 1: training on a home's own labels, with gradient corrections and extra loss terms as parts that compose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headwater.core.params import By, Params
from headwater.data.base import Examples
from headwater.specs import LocalSpec
from headwater.tasks.batched.trainer import train_together
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.optimizers import Stepper, batches, picked, steps_per_epoch, total_steps
from headwater.tasks.task import TaskContext, task


@dataclass(frozen=True)
class Batch:
    """One step, as a loss term sees it."""

    ctx: TaskContext
    net: FlatModule
    start: Params
    x: Tensor
    y: Tensor
    output: Tensor
    loss: Tensor  # of this batch, before any term
    index: Tensor  # the batch's rows in the home's data
    epoch: int = 0
    last: bool = False  # whether this is the last epoch
    known: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """What the extractor gave for this batch; there for terms that declare FEATURES."""
        assert self.known is not None
        return self.known


class Term(Protocol):
    """An addition to the loss of one batch: a frozen dataclass, whose fields may be values of the home.

    A class that sets `FEATURES = True` finds `step.features`; one that has `begin(ctx, start)` is asked once before
    the first step and gives the term that is then used.
    """

    def __call__(self, step: Batch) -> Tensor: ...


@task("train", together=train_together, stacked=True)
def local_train(
    ctx: TaskContext,
    start: Params,
    spec: LocalSpec,
    corrections: tuple[Tensor | Params | None, ...] = (),
    terms: tuple[Term, ...] = (),
    data: Examples | None = None,
    by: By = "samples",
) -> Params:
    """Train from `start` with a fresh optimiser. The result weighs as many samples as were trained on, or 1 where
    clients count alike (`by = "uniform"`), so that means of means stay right.

    `corrections` are added to every gradient (None counts as zero); `data` replaces the home's own rows.
    """
    rows = data if data is not None else ctx.data
    if rows is None:
        raise LookupError(f"{ctx.home} holds no training data")
    terms = tuple(term.begin(ctx, start) if hasattr(term, "begin") else term for term in terms)
    apart = any(getattr(term, "FEATURES", False) for term in terms)
    net = ctx.flat_module(start)
    given = [c.trainable if isinstance(c, Params) else c for c in corrections if c is not None]
    total, epoch = total_steps(len(rows), spec), steps_per_epoch(len(rows), spec)
    stepper = Stepper(net, spec, total, sum(given[1:], given[0]) if given else None)
    losses: list[float] = []
    sizes: list[int] = []
    kind = start.vector.dtype
    for batch in batches(len(rows), spec, ctx.rng):
        x, y = picked(rows.x, batch), picked(rows.y, batch)
        net.train(len(batch))
        features = net.features(x) if apart else None
        output = net(x) if features is None else net.classify(features)
        loss = net.loss(output, y)
        losses.append(loss.item())
        sizes.append(len(batch))
        kind = loss.dtype
        if terms:
            now = stepper.taken // epoch
            last = now == (total - 1) // epoch
            step = Batch(ctx, net, start, x, y, output, loss, batch, now, last, features)
            loss = loss + sum(term(step) for term in terms)
        stepper.step(loss)
    if sizes:
        ctx.note(loss=_mean(losses, sizes, kind))
    return net.params(weight=float(len(rows)) if by == "samples" else 1.0)


def _mean(losses: list[float], sizes: list[int], dtype: torch.dtype) -> float:
    """Over all samples seen, added up batch after batch in the precision of the losses."""
    kind = np.float64 if dtype == torch.float64 else np.float32
    with np.errstate(all="ignore"):  # whoever diverges is told so elsewhere
        return float(np.cumsum(np.array(losses, kind) * np.array(sizes, kind))[-1]) / sum(sizes)


@task("train")
def label_counts(ctx: TaskContext) -> Tensor:
    """How many samples of each class this home holds. Sharing it tells the receiver the home's label mix."""
    assert ctx.data is not None
    return torch.bincount(ctx.data.y, minlength=ctx.classes).double()


@task("train")
def own_rows(ctx: TaskContext) -> Examples:
    """The home's data itself, for the pooled reference only."""
    assert ctx.data is not None
    return ctx.data


@task("train")
def pooled(ctx: TaskContext, rows: Mapping[str, Examples]) -> Examples:
    return Examples(torch.cat([r.x for r in rows.values()]), torch.cat([r.y for r in rows.values()]))
