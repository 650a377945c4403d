"""Terms that methods add to the local loss: proximal, dynamic, contrastive, and those of shared class knowledge.

`headwater.tasks.local` says what a term may define. One that a single method uses is in that method's file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.core.params import Params
from headwater.tasks.cost import ITSELF, Cost
from headwater.tasks.local import Batch
from headwater.tasks.task import TaskContext, task

Norms = Literal["paper", "code"]
Agreement = Literal["paper", "code", "fedhead"]
First = Literal["initial", "own", "received"]
OWN = 2**32  # number of the first client's own initial model; smaller ones are of models that methods draw


# -- the model that is trained, and the one that was received


@dataclass(frozen=True)
class Proximal:
    """(mu / 2) · ‖w − start‖², FedProx's pull towards the model that was received."""

    mu: float

    @property
    def quadratic(self) -> tuple[float, Tensor | None]:
        """Strength m and direction d of a term (m / 2) · ‖w − start‖² + ⟨d, w⟩, the only kind that is stacked."""
        return self.mu, None

    def __call__(self, step: Batch) -> Tensor:
        return 0.5 * self.mu * (step.net.weights() - step.start.trainable).square().sum()


@dataclass(frozen=True)
class Dynamic:
    """−⟨gradient, w⟩ + (alpha / 2) · ‖w − start‖², FedDyn's regulariser; no gradient yet counts as zero."""

    alpha: float
    gradient: Params | None = None

    @property
    def quadratic(self) -> tuple[float, Tensor | None]:
        return self.alpha, None if self.gradient is None else -self.gradient.trainable

    def __call__(self, step: Batch) -> Tensor:
        pull = Proximal(self.alpha)(step)
        return pull if self.gradient is None else pull - self.gradient.trainable @ step.net.weights()


# -- MOON: features of the global model, and of the client's earlier models


@dataclass(frozen=True)
class Contrast:
    """mu · cross-entropy of label 0 over the cosines (z · z_global, z · z_earlier, …) / tau.

    The other models are frozen, so their features of the home's rows are computed once, in evaluation mode, before the
    first step.

    Args:
        mu: weight of the term.
        tau: temperature of the cosines.
        previous: the client's earlier models.
        first: model used instead of a missing earlier one: the run's "initial" one, one of the client's "own" that is
            drawn for it alone, or the one just "received".
        number: index of the initial model, for a method that draws several.
        known: normalised features of the home's rows (models, rows, width), set by `begin`.
    """

    mu: float
    tau: float
    previous: tuple[Params, ...] | None = None
    first: First = "initial"
    number: int = 0
    known: Tensor | None = None

    FEATURES: ClassVar[bool] = True

    def cost(self, ctx: TaskContext, start: Params, rows: int, steps: int) -> Cost:
        """One pass of the global and of each earlier model over the home's rows, before the first step."""
        models = 1 + max(1, len(self.previous or ()))
        return Cost(passes={start.layout.arch: rows * models} if self.mu else {})

    def begin(self, ctx: TaskContext, start: Params) -> Self:
        if not self.mu:
            return self
        assert ctx.data is not None
        others = (start, *(self.previous or (self._first(ctx, start),)))
        tables = [F.normalize(ctx.flat_module(model, slot=1).represent(ctx.data.x), dim=1) for model in others]
        return replace(self, known=torch.stack(tables))

    def _first(self, ctx: TaskContext, start: Params) -> Params:
        if self.first == "received":
            return start
        own = self.first == "own"
        return ctx.initial(start.layout.arch, OWN + int(ctx.home.removeprefix("c")) if own else self.number)

    def __call__(self, step: Batch) -> Tensor:
        if self.known is None:
            return step.loss.new_zeros(())
        cosines = (F.normalize(step.features, dim=1) * self.known[:, step.index]).sum(2).T
        return self.mu * F.cross_entropy(cosines / self.tau, torch.zeros_like(step.y))


@task("average", returns=ITSELF, derived=True)
def remember(ctx: TaskContext, new: Params, old: tuple[Params, ...] | None, most: int) -> tuple[Params, ...]:
    """Return the `most` latest models of this home, newest first."""
    return (new, *(old or ()))[:most]


# -- class knowledge: agreement of the classifier, and a pull of the extractor


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
    present: Tensor | None = None  # which of these rows are known

    FEATURES: ClassVar[bool] = True

    def begin(self, ctx: TaskContext, start: Params) -> Self:
        if not self.known:
            return self
        first = next(iter(self.known.values()))[0]
        centres = first.new_zeros(ctx.classes, len(first))
        present = first.new_zeros(ctx.classes, dtype=torch.bool)
        for label, (centre, *_) in self.known.items():
            centres[label], present[label] = centre, True
        return replace(self, centres=centres, present=present)

    def __call__(self, step: Batch) -> Tensor:
        if self.centres is None or self.present is None:
            return step.loss.new_zeros(())
        away = (step.features - self.centres[step.y])[self.present[step.y]]
        total = away.square().sum() / away.shape[1] if self.norms == "code" else _lengths(away).sum()
        return self.weight * total / len(step.y)


def _lengths(rows: Tensor) -> Tensor:
    """Euclidean lengths, not squared. For a row of zeros torch takes 0 as the gradient."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths
