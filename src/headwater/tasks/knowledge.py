"""Class knowledge: means over the samples of each class, computed at a client, pooled above it, used in a loss.

Knowledge is {class: (mean, …, count)}, where the count is the weight of the means: pooling parts and then their results
gives the same as pooling all at once. Clients are sent {class: (mean, …)}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from headwater.core.params import By, Params
from headwater.specs import LocalSpec
from headwater.tasks.cost import ITSELF, Cost, passes_through, shaped
from headwater.tasks.local import Batch, Term, local_cost, local_train
from headwater.tasks.sums import pooled
from headwater.tasks.task import TaskContext, task

Sensitivity = Literal["per_coordinate", "l2"]
Counted = dict[int, tuple[Any, ...]]  # {class: (mean, …, count)}


# -- at a client


@dataclass(frozen=True)
class Release:
    """Which classes a client shares, and how their means are protected.

    Args:
        nu: smallest share of the client's samples that a class must have.
        temperature: of the soft predictions.
        sigma: noise on representations, in units of the change that one sample can make; 0 adds none.
        zeta: bound on a coordinate.
        clip: whether coordinates are clipped to ±zeta before the mean.
        sensitivity: change by one sample, for each coordinate or for the whole vector.
        noise: "scaled" by sensitivity and count, or "fixed": std sigma, one draw for all classes.
    """

    nu: float = 0.0
    temperature: float = 1.0
    sigma: float = 0.0
    zeta: float = 3.0
    clip: bool = False
    sensitivity: Sensitivity = "per_coordinate"
    noise: Literal["scaled", "fixed"] = "scaled"

    def shares(self, count: int, samples: int) -> bool:
        """Whether a class with so many of the client's samples is shared.

        The mean of one sample is that sample, which noise scaled for a mean does not hide.
        """
        least = 2 if self.sigma and self.noise == "scaled" else 1
        return count >= least and count / samples >= self.nu

    def scale(self, count: int, dimension: int) -> float:
        """Standard deviation of the noise: S·σ with S = 2ζ/N for each coordinate or, with √d, for the whole vector."""
        if self.noise == "fixed":
            return self.sigma
        whole = math.sqrt(dimension) if self.sensitivity == "l2" else 1.0
        return self.sigma * 2 * self.zeta / count * whole


def _class_sizes(ctx: TaskContext) -> dict[int, int]:
    """Samples of each class that this home holds."""

    def count() -> dict[int, int]:
        counts = torch.bincount(ctx.table.y[torch.as_tensor(ctx.rows)], minlength=ctx.classes).tolist()
        return {label: count for label, count in enumerate(counts) if count}

    sizes: dict[int, int] = ctx.once(("class sizes", ctx.home), count)
    return sizes


def _one_pass(ctx: TaskContext, model: Params, **_: Any) -> Cost:
    return Cost(passes=passes_through([model], ctx.samples))


def _representation(ctx: TaskContext, model: Params) -> Tensor:
    arch = model.layout.arch
    return shaped(ctx.once(("width", arch), lambda: _width(ctx, arch, ctx.table.x)), dtype=model.vector.dtype)


def _knowledge_outline(ctx: TaskContext, model: Params, release: Release) -> Counted:
    mean, soft = _representation(ctx, model), shaped(ctx.classes, dtype=model.vector.dtype)
    sizes = _class_sizes(ctx)
    return {label: (mean, soft, n) for label, n in sizes.items() if release.shares(n, ctx.samples)}


def _prototype_outline(ctx: TaskContext, model: Params, by: By = "samples") -> Counted:
    mean = _representation(ctx, model)
    return {label: (mean, _weight(count, by)) for label, count in _class_sizes(ctx).items()}


@task("train", cost=_one_pass, returns=_knowledge_outline, noisy=True)
def knowledge(ctx: TaskContext, model: Params, release: Release) -> Counted:
    """FedHKD's step 4: {class: (mean representation with noise, mean soft prediction, count)} in evaluation mode.

    Soft predictions and counts are shared without noise.

    Args:
        ctx: where it runs.
        model: the model that represents the home's rows.
        release: which classes are shared and how they are protected.
    """
    assert ctx.data is not None
    x, y = ctx.data.x, ctx.data.y
    net = ctx.flat_module(model)
    features = net.represent(x)
    with torch.no_grad():
        soft = torch.softmax(net.classify(features) / release.temperature, dim=1)
    bounded = features.clamp(-release.zeta, release.zeta) if release.clip else features
    dimension, same = features.shape[1], None
    if release.sigma and release.noise == "fixed":
        same = ctx.noise.normal(size=dimension)
    shared: Counted = {}
    for label, count in enumerate(torch.bincount(y, minlength=ctx.classes).tolist()):
        if release.shares(count, len(y)):
            rows = y == label
            mean = bounded[rows].mean(0)
            if release.sigma:
                drawn = ctx.noise.normal(size=dimension) if same is None else same
                mean = mean + release.scale(count, dimension) * torch.from_numpy(drawn).to(mean)
            shared[label] = (mean, soft[rows].mean(0), count)
    ctx.note(released=len(shared))
    return shared


@task("train", cost=_one_pass, returns=_prototype_outline)
def prototypes(ctx: TaskContext, model: Params, by: By = "samples") -> Counted:
    """{class: (mean representation, weight)} of every class that this home holds.

    Args:
        ctx: where it runs.
        model: the model that represents the home's rows.
        by: the weight is the number of samples of the class ("samples") or 1 ("uniform").
    """
    assert ctx.data is not None
    features, y = ctx.flat_module(model).represent(ctx.data.x), ctx.data.y
    by_class = {label: features[y == label] for label in sorted(set(y.tolist()))}
    return {label: (rows.mean(0), _weight(len(rows), by)) for label, rows in by_class.items()}


@task(
    "train",
    cost=local_cost,
    returns=lambda ctx, start, by="samples", **_: {"model": start, "prototypes": _prototype_outline(ctx, start, by)},
    update="start",
    takes_bound=True,
)
def train_collecting(
    ctx: TaskContext,
    start: Params,
    spec: LocalSpec,
    terms: tuple[Term, ...] = (),
    by: By = "samples",
    bound: float = 0.0,
) -> dict[str, Any]:
    """Train as `local_train` does, and average the representations of the last epoch by class.

    Returns:
        `model` and `prototypes`, which are as those of the task `prototypes`.
    """
    seen = Collect()
    model = local_train(ctx, start, spec, terms=(*terms, seen), by=by)
    means = {label: (total / count, _weight(count, by)) for label, (total, count) in sorted(seen.sums.items())}
    return {"model": model, "prototypes": means}


def _weight(count: int, by: By) -> int:
    return count if by == "samples" else 1


# -- above clients


@task("distill", streaming=("models",), cost=Cost(), returns=ITSELF, sums=("models", pooled))
def pool(ctx: TaskContext, models: Mapping[str, Counted], how: Literal["mean", "last"] = "mean") -> Counted:
    """Pool the knowledge of several senders.

    Args:
        ctx: where it runs.
        models: sender → its knowledge.
        how: "mean" averages each class by counts over the senders that have it, "last" takes the last sender's.
    """
    pooled: Counted = {}
    for part in models.values():
        for label, (*means, count) in part.items():
            if label not in pooled or how == "last":
                pooled[label] = (*means, count)
                continue
            *before, total = pooled[label]
            mixed = [torch.lerp(a, b, count / (total + count)) for a, b in zip(before, means, strict=True)]
            pooled[label] = (*mixed, total + count)
    ctx.note(knowledge_classes=len(pooled))
    return dict(sorted(pooled.items()))


@task("average", returns=ITSELF)
def settled(ctx: TaskContext, known: Counted) -> dict[int, tuple[Any, ...]]:
    """Pooled knowledge as it is sent to clients: without counts, which they do not need."""
    return {label: tuple(means) for label, (*means, _) in known.items()}


@task("average", returns=ITSELF)
def width(ctx: TaskContext, arch: str) -> int:
    """Number of features of this architecture's representations."""
    return _width(ctx, arch, ctx.test.x)


def _width(ctx: TaskContext, arch: str, x: Tensor) -> int:
    return int(ctx.flat_module(ctx.initial(arch)).represent(x[:1]).shape[1])


# -- in training


@dataclass(frozen=True)
class Collect:
    """Adds nothing to the loss: sums the representations of the last epoch by class."""

    sums: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

    FEATURES: ClassVar[bool] = True

    def __call__(self, step: Batch) -> Tensor:
        if step.last:
            features = step.features.detach()
            for label in set(step.y.tolist()):
                rows = features[step.y == label]
                total, count = self.sums.get(label, (features.new_zeros(features.shape[1]), 0))
                self.sums[label] = (total + rows.sum(0), count + len(rows))
        return step.loss.new_zeros(())
