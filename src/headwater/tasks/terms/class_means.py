"""Loss terms of methods that share class knowledge: agreement of the classifier, and a pull of the extractor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.core.params import Params
from headwater.tasks.local import Batch
from headwater.tasks.task import TaskContext

Norms = Literal["paper", "code"]
Agreement = Literal["paper", "code", "fedhead"]


@dataclass(frozen=True)
class Agree:
    """weight · (1/n) Σ_j ‖softmax_T(G(H_j)) − Q_j‖ over known classes: the classifier is to give the known predictions.

    n counts all classes, so a class that is not known adds 0. norms = "code" is the mean over known classes and
    entries of Q_j (log Q_j − log softmax_T(G(H_j))), "fedhead" the mean over known classes of the cross-entropy with
    Q_j. Only the classifier gets a gradient from it.
    """

    weight: float
    known: Any  # {class: (H, Q)}, or None
    temperature: float = 0.5
    norms: Agreement = "paper"
    centres: Tensor | None = None  # all H_j and all Q_j, stacked by `begin`
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

    norms = "code" is the mean-squared error over samples and coordinates. Only the extractor gets a gradient from it.
    """

    weight: float
    known: Any  # {class: (H, …)}, or None
    norms: Norms = "paper"
    centres: Tensor | None = None  # one row per class, made by `begin`
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
    """Euclidean lengths, not squared. For a row of zeros torch takes 0 as the gradient."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths
