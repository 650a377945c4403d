"""What clients know of each class, as means over its samples: made at a client, pooled above it, used in a loss.

Until it is pooled, knowledge is {class: (mean, …, count)}, where the count says how much the means weigh: pooling over
parts and then over their results gives what pooling over all at once gives. Clients are sent {class: (mean, …)}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.core.params import By, Params
from headwater.specs import LocalSpec
from headwater.tasks.local import Batch, Term, local_train
from headwater.tasks.task import TaskContext, task

Norms = Literal["paper", "code"]
Agreement = Literal["paper", "code", "fedhead"]
Sensitivity = Literal["per_coordinate", "l2"]
Counted = dict[int, tuple[Any, ...]]  # {class: (mean, …, count)}


# -- at a client


@dataclass(frozen=True)
class Release:
    """Which classes a client shares, and what is done to their means first."""

    nu: float = 0.0  # the least share of its samples that a class must have
    temperature: float = 1.0  # of the soft predictions
    sigma: float = 0.0  # noise on representations, in units of what one sample can change; 0: none
    zeta: float = 3.0  # the bound on a coordinate
    clip: bool = False  # coordinates to ±zeta before the mean
    sensitivity: Sensitivity = "per_coordinate"
    noise: Literal["scaled", "fixed"] = "scaled"  # "fixed": std sigma whatever the count, one draw for all classes

    def shares(self, count: int, samples: int) -> bool:
        """A mean of one sample is that sample, which noise scaled for a mean does not hide."""
        least = 2 if self.sigma and self.noise == "scaled" else 1
        return count >= least and count / samples >= self.nu

    def scale(self, count: int, dimension: int) -> float:
        """S·σ with S = 2ζ/N, for each coordinate or, with √d, for the whole vector."""
        if self.noise == "fixed":
            return self.sigma
        whole = math.sqrt(dimension) if self.sensitivity == "l2" else 1.0
        return self.sigma * 2 * self.zeta / count * whole


@task("train")
def knowledge(ctx: TaskContext, model: Params, release: Release) -> Counted:
    """FedHKD's step 4: {class: (mean representation with noise, mean soft prediction, count)} in evaluation mode.

    Soft predictions and counts go out as they are.
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
    found: Counted = {}
    for label, count in enumerate(torch.bincount(y, minlength=ctx.classes).tolist()):
        if release.shares(count, len(y)):
            rows = y == label
            mean = bounded[rows].mean(0)
            if release.sigma:
                drawn = ctx.noise.normal(size=dimension) if same is None else same
                mean = mean + release.scale(count, dimension) * torch.from_numpy(drawn).to(mean.dtype)
            found[label] = (mean, soft[rows].mean(0), count)
    return found


@task("train")
def prototypes(ctx: TaskContext, model: Params, by: By = "samples") -> Counted:
    """{class: (mean representation, weight)} of every class held; a client weighs by its samples of it, or 1."""
    assert ctx.data is not None
    features, y = ctx.flat_module(model).represent(ctx.data.x), ctx.data.y
    held = {label: features[y == label] for label in sorted(set(y.tolist()))}
    return {label: (rows.mean(0), _weight(len(rows), by)) for label, rows in held.items()}


@task("train")
def train_collecting(
    ctx: TaskContext, start: Params, spec: LocalSpec, terms: tuple[Term, ...] = (), by: By = "samples"
) -> dict[str, Any]:
    """Train, and make prototypes of what the extractor gave in the last epoch while it was still changing."""
    seen = Collect()
    model = local_train(ctx, start, spec, terms=(*terms, seen), by=by)
    means = {label: (total / count, _weight(count, by)) for label, (total, count) in sorted(seen.sums.items())}
    return {"model": model, "prototypes": means}


def _weight(count: int, by: By) -> int:
    return count if by == "samples" else 1


# -- above clients


@task("distill", streaming=("models",))
def pool(ctx: TaskContext, models: Mapping[str, Counted], how: Literal["mean", "last"] = "mean") -> Counted:
    """One knowledge from several: by class the mean by counts over those who have it, or what came last ("last")."""
    found: Counted = {}
    for part in models.values():
        for label, (*means, count) in part.items():
            if label not in found or how == "last":
                found[label] = (*means, count)
                continue
            *before, total = found[label]
            mixed = [torch.lerp(a, b, count / (total + count)) for a, b in zip(before, means, strict=True)]
            found[label] = (*mixed, total + count)
    ctx.note(knowledge_classes=len(found))
    return dict(sorted(found.items()))


@task("average")
def settled(ctx: TaskContext, known: Counted) -> dict[int, tuple[Any, ...]]:
    """Pooled knowledge as clients are sent it: without counts, which they have no use for."""
    return {label: tuple(means) for label, (*means, _) in known.items()}


@task("average")
def width(ctx: TaskContext, arch: str) -> int:
    """How many numbers a representation of this architecture has."""
    return int(ctx.flat_module(ctx.initial(arch)).represent(ctx.test.x[:1]).shape[1])


# -- in the loss


@dataclass(frozen=True)
class Agree:
    """weight · (1/n) Σ_j ‖softmax_T(G(H_j)) − Q_j‖ over known classes: the classifier is to give the known predictions.

    n counts all classes, so a class that is not known adds 0. norms = "code" is the mean over known classes and
    entries of Q_j (log Q_j − log softmax_T(G(H_j))), "fedhead" the mean over known classes of the cross-entropy with
    Q_j. Only the classifier feels it.
    """

    weight: float
    known: Any  # {class: (H, Q)}, or None
    temperature: float = 0.5
    norms: Agreement = "paper"
    centres: Tensor | None = None  # all H_j, stacked by `begin`, and all Q_j
    targets: Tensor | None = None

    def begin(self, ctx: TaskContext, start: Params) -> Self:
        if not self.known:
            return self
        centres, targets = (torch.stack(column) for column in zip(*self.known.values(), strict=True))
        return replace(self, centres=centres, targets=targets)

    def __call__(self, step: Batch) -> Tensor:
        if self.centres is None or self.targets is None:
            return step.loss.new_zeros(())
        scaled = step.net.classify(self.centres) / self.temperature
        if self.norms == "code":
            return self.weight * F.kl_div(torch.log_softmax(scaled, dim=1), self.targets, reduction="none").mean()
        if self.norms == "fedhead":
            return self.weight * F.cross_entropy(scaled, self.targets)
        return self.weight / step.ctx.classes * _lengths(torch.softmax(scaled, dim=1) - self.targets).sum()


@dataclass(frozen=True)
class Pull:
    """weight · (1/B) Σ_b ‖R(x_b) − H_{y_b}‖ over samples whose class is known: representations are to be near its mean.

    norms = "code" is the mean-squared error over samples and coordinates. Only the extractor feels it.
    """

    weight: float
    known: Any  # {class: (H, …)}, or None
    norms: Norms = "paper"
    centres: Tensor | None = None  # a row a class, made by `begin`
    held: Tensor | None = None  # which of these rows are known

    FEATURES: ClassVar[bool] = True

    def begin(self, ctx: TaskContext, start: Params) -> Self:
        if not self.known:
            return self
        first = next(iter(self.known.values()))[0]
        centres, held = first.new_zeros(ctx.classes, len(first)), torch.zeros(ctx.classes, dtype=torch.bool)
        for label, (centre, *_) in self.known.items():
            centres[label], held[label] = centre, True
        return replace(self, centres=centres, held=held)

    def __call__(self, step: Batch) -> Tensor:
        if self.centres is None or self.held is None:
            return step.loss.new_zeros(())
        away = (step.features - self.centres[step.y])[self.held[step.y]]
        total = away.square().sum() / away.shape[1] if self.norms == "code" else _lengths(away).sum()
        return self.weight * total / len(step.y)


def _lengths(rows: Tensor) -> Tensor:
    """Euclidean lengths, not squared. Where a row is 0 there is no gradient, and torch gives 0 for it."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths


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
