"""Corrections of local gradients that clients and servers keep, and how they are updated.

A correction has the form of a model, so it is averaged, moved and counted as models are. Only trainable parameters are
corrected; its buffers are zero. None stands for a correction that does not exist yet, which counts as zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from headwater.core.params import By, Params
from headwater.models.base import ModelSpec
from headwater.models.building import has_batch_norm
from headwater.specs import LocalSpec
from headwater.tasks.cost import Cost, first_of
from headwater.tasks.optimizers import total_steps
from headwater.tasks.sums import ModelSum
from headwater.tasks.task import TaskContext, task

# -- arithmetic


def bare(model: Params) -> Params:
    """The model with its buffers set to zero."""
    vector = model.vector.clone()
    vector[model.layout.size :] = 0
    return replace(model, vector=vector)


def moved(model: Params, by: Params, factor: float) -> Params:
    """`model + factor · by` in the trainable parameters; buffers stay those of `model`."""
    vector = model.vector.clone()
    vector[: model.layout.size].add_(by.trainable, alpha=factor)
    return replace(model, vector=vector)


@task("average", returns="model", derived=True)
def zeros_like(ctx: TaskContext, model: Params) -> Params:
    """A correction of zero for this model."""
    return model * 0.0


@task("train", cost=Cost(), returns="a", derived=True)
def minus(ctx: TaskContext, a: Params, b: Params | None) -> Params:
    """a − b in the trainable parameters; `b` None counts as zero."""
    return bare(a if b is None else a - b)


@task(
    "average",
    streaming=("models",),
    returns=first_of("models"),
    derived=True,
    sums=("models", lambda **_: ModelSum(mean=False)),
)
def total(ctx: TaskContext, models: Mapping[str, Params]) -> Params:
    """The sum of models, each times its weight. Its own weight is 1, so that a sum of sums is the sum."""
    return replace(reduce(add, (model * model.weight for model in models.values())), weight=1.0)


@task("average", returns="old", derived=True)
def shift(ctx: TaskContext, old: Params, by: Params, share: float) -> Params:
    """old + share · by."""
    return moved(old, by, share)


@task("average", returns="start", derived=True)
def step_towards(ctx: TaskContext, start: Params, mean: Params, rate: float) -> Params:
    """start + rate · (mean − start), with the buffers of `mean`. At a client, `mean` is the model that it trained."""
    return mean if rate == 1 else moved(mean, start - mean, 1 - rate)


# -- from paths to gradients


def _gradient_cost(ctx: TaskContext, model: Params, spec: LocalSpec, one_batch: bool = False, **_: Any) -> Cost:
    rows = min(spec.batch, ctx.samples) if one_batch else ctx.samples
    return Cost(model.layout.arch, samples=rows, gradients=math.ceil(rows / spec.batch))


@task("train", cost=_gradient_cost, returns="model")
def gradient_at(
    ctx: TaskContext, model: Params, spec: LocalSpec, by: By = "samples", one_batch: bool = False
) -> Params:
    """The gradient of this home's loss at a model: one pass over its rows, or over some of them, without a step.

    Args:
        ctx: where it runs.
        model: where the gradient is taken.
        spec: the stage, for its batch size.
        by: weight of the result, as in `local_train`.
        one_batch: take a single batch, drawn at random, in place of all rows.
    """
    assert ctx.data is not None
    rows, net = torch.arange(len(ctx.data)), ctx.flat_module(model)
    if one_batch and len(rows) > spec.batch:
        rows = torch.from_numpy(np.sort(ctx.rng.choice(len(rows), spec.batch, replace=False)))
    net.grad.zero_()
    for part in torch.split(rows.to(ctx.device), spec.batch):
        net.train(len(part))
        loss = net.loss(net(ctx.data.x[part]), ctx.data.y[part])
        (loss * (len(part) / len(rows))).backward()  # type: ignore[no-untyped-call]
    gradient = bare(replace(model, weight=float(len(ctx.data)) if by == "samples" else 1.0))
    gradient.trainable.copy_(net.grad)
    return gradient


@task("train", cost=Cost(), returns="mine", derived=True)
def corrected(ctx: TaskContext, old: Params | None, mine: Params, ours: Params, pace: float) -> Params:
    """MTGC's update of either correction: old + (mine − ours) / pace, where pace is steps times learning rate."""
    change = bare((mine - ours) * (1 / pace))
    return change if old is None else old + change


@task(
    "train",
    cost=lambda ctx, start, spec, gradient=False, **_: _gradient_cost(ctx, start, spec) if gradient else Cost(),
    returns=lambda ctx, mine, **_: {"model": mine, "own": mine, "delta": mine},
    derived=lambda gradient=False, **_: not gradient,  # the number of steps counts as known
    passes={"model": "mine"},
)
def variate(
    ctx: TaskContext,
    start: Params,
    mine: Params,
    common: Params,
    own: Params | None,
    spec: LocalSpec,
    gradient: bool = False,
) -> dict[str, Params]:
    """SCAFFOLD's new control variate of this home, its change, and the model.

    All come from one task, so a client that is lost here changes nothing at all. The steps are those that this home
    took, which differ where clients of unequal sizes train for epochs.

    Args:
        ctx: where it runs.
        start: the model that training began with.
        mine: the model that this home trained.
        common: the server's control variate.
        own: this home's control variate so far; None counts as zero.
        spec: the stage.
        gradient: option I of the paper: the gradient at `start` in place of the mean over the path.

    Returns:
        `model`, `own` (the new variate) and `delta` (its change).
    """
    assert ctx.data is not None
    steps = total_steps(len(ctx.data), spec)
    before = common * 0.0 if own is None else own
    if gradient:  # option I
        after = gradient_at(ctx, start, spec)
    elif steps:  # option II: the mean gradient along the path
        after = bare(before - common + (start - mine) * (1 / (steps * spec.lr)))
    else:  # without a step the path tells nothing about the gradient
        after = before
    return {"model": mine, "own": after, "delta": replace(after - before, weight=mine.weight)}


@task(
    "train",
    cost=Cost(),
    returns=lambda ctx, mine, **_: {"model": mine, "own": mine},
    derived=True,
    passes={"model": "mine"},
)
def dual(ctx: TaskContext, start: Params, mine: Params, old: Params | None, alpha: float) -> dict[str, Params]:
    """FedDyn's g − alpha · (mine − start), and the model: both from one task, as in `variate`."""
    change = bare((mine - start) * -alpha)
    return {"model": mine, "own": change if old is None else old + change}


@task("average", returns=lambda ctx, mean, **_: {"model": mean, "h": mean})
def dynamic_server(
    ctx: TaskContext, start: Params, mean: Params, h: Params | None, alpha: float, members: int
) -> dict[str, Params]:
    """FedDyn's server step: h − alpha · (sum of the clients' model changes) / members, then mean − h / alpha.

    `mean` must weigh clients alike, so that its weight is the number of clients in it.
    """
    change = bare((mean - start) * (-alpha * mean.weight / members))
    after = change if h is None else h + change
    return {"model": moved(mean, after, -1 / alpha), "h": after}


# -- requirements of methods with corrections


def alike(spec: LocalSpec, sizes: Sequence[int]) -> LocalSpec:
    """The stage with the same number of steps for every client: that of a client of mean size, as in MTGC's code."""
    if spec.steps is not None:
        return spec
    mean = sum(sizes) / len(sizes)
    return replace(spec, steps=(spec.epochs or 0) * math.ceil(mean / spec.batch), epochs=None)


def check_path(spec: LocalSpec, method: str, instead: str = "use plain 'sgd' with a constant rate") -> None:
    """Raise ValueError for an optimiser whose path does not determine the mean gradient."""
    odd = [f"local.optimizer = {spec.optimizer!r}"] if spec.optimizer != "sgd" else []
    odd += [f"local.momentum = {spec.momentum}"] if spec.momentum else []
    odd += [f"local.lr_time_decay = {spec.lr_time_decay}"] if spec.lr_time_decay else []
    odd += [f"local.low_bit = {spec.low_bit!r}"] if spec.low_bit != "none" else []
    if odd:
        raise ValueError(
            f"{method} takes the mean gradient from steps · lr, which does not hold with {odd[0]}; {instead}"
        )


def check_steps(spec: LocalSpec, method: str) -> None:
    """Raise ValueError unless every client takes the same number of steps, at least one."""
    if spec.drop_last or 0 in (spec.steps, spec.epochs):
        raise ValueError(
            f"every client of {method} must take the same number of steps, at least one; "
            "leave local.drop_last off and give local.steps or local.epochs above 0"
        )


def buffers_caution(model: ModelSpec) -> tuple[str, ...]:
    """A caution if gradients of a model with batch norm are to be corrected."""
    if not has_batch_norm(model.outline()):
        return ()
    return (
        f"model {model.name!r} has batch norm, whose running statistics carry no correction; "
        "such methods are published for group norm or no norm (model.norm = 'group')",
    )
