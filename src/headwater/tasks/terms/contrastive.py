"""MOON's loss term: features close to those of the global model, and far from those of the client's earlier models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.core.params import Params
from headwater.tasks.cost import ITSELF, Cost
from headwater.tasks.local import Batch
from headwater.tasks.task import TaskContext, task


@dataclass(frozen=True)
class Contrast:
    """mu · cross-entropy of label 0 over the cosines (z · z_global, z · z_earlier, …) / tau.

    The other models are frozen, so their features of the home's rows are computed once, in evaluation mode, before the
    first step.

    Args:
        mu: weight of the term.
        tau: temperature of the cosines.
        previous: the client's earlier models.
        first: model used instead of a missing earlier one: the run's "initial" one or the one just "received".
        number: index of the initial model, for a method that draws several.
        known: normalised features of the home's rows (models, rows, width), set by `begin`.
    """

    mu: float
    tau: float
    previous: tuple[Params, ...] | None = None
    first: Literal["initial", "received"] = "initial"
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
        other = start if self.first == "received" else ctx.initial(start.layout.arch, self.number)
        others = (start, *(self.previous or (other,)))
        tables = [F.normalize(ctx.flat_module(model, slot=1).represent(ctx.data.x), dim=1) for model in others]
        return replace(self, known=torch.stack(tables))

    def __call__(self, step: Batch) -> Tensor:
        if self.known is None:
            return step.loss.new_zeros(())
        cosines = (F.normalize(step.features, dim=1) * self.known[:, step.index]).sum(2).T
        return self.mu * F.cross_entropy(cosines / self.tau, torch.zeros_like(step.y))


@task("average", returns=ITSELF)
def remember(ctx: TaskContext, new: Params, old: tuple[Params, ...] | None, most: int) -> tuple[Params, ...]:
    """Return the `most` latest models of this home, newest first."""
    return (new, *(old or ()))[:most]
