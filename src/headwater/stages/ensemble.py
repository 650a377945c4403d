"""Stage 2: several models as one teacher.

Members are asked one after the other and folded into a running weighted mean, so memory holds one table of outputs
however many members there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwater.params import Params
from headwater.specs import Mix, Weights
from headwater.stages.site import Site

_TINY = 1e-30


@dataclass(frozen=True)
class Target:
    """What the student is taught: a probability vector a sample, and the part of the loss that it cannot change."""

    probs: Tensor
    constant: Tensor  # Σ_k a_k Σ_c p_k log p_k for `losses`, Σ_c q log q otherwise

    def loss(self, batch: Tensor, output: Tensor, temperature: float) -> Tensor:
        """mean KL(teacher ‖ student) over a batch; its gradient is that of the soft-target cross-entropy."""
        log_student = torch.log_softmax(output / temperature, dim=1)
        return (self.constant[batch] - (self.probs[batch] * log_student).sum(1)).mean()

    def accuracy(self, y: Tensor) -> float:
        return float((self.probs.argmax(1) == y).double().mean())


@torch.no_grad()
def ensemble(
    site: Site,
    members: Mapping[str, Params],
    x: Tensor,
    *,
    mix: Mix = "probs",
    weights: Weights = "samples",
    temperature: float = 1.0,
    batch: int = 128,
    counts: Mapping[str, Tensor] | None = None,
) -> Target:
    """The teacher's outputs on `x`: each member sees each input once.

    `probs` and `losses` average softmax outputs, `logits` averages what goes into the softmax. A member weighs by its
    samples, like every other (`uniform`), by its count of each class (`labels`, needs `counts`), or the more the
    surer it is of the sample at hand (`confidence`: one minus its entropy relative to that of a uniform guess).
    """
    if not members:
        raise ValueError("an ensemble needs at least one member")
    if weights == "labels" and counts is None:
        raise ValueError("weights = 'labels' needs the members' label counts")
    folded, constant = torch.zeros(()), torch.zeros(())
    total: Tensor = torch.zeros(())
    for name, member in members.items():
        output = site.bench(member).outputs(x, batch)
        probs = torch.softmax(output / temperature, dim=1)
        if weights == "confidence":
            negative_entropy = torch.xlogy(probs, probs).sum(1, keepdim=True)
            weight = 1 + negative_entropy / math.log(max(2, output.shape[1])) + 1e-6
        elif weights == "labels":
            assert counts is not None
            weight = counts[name].to(output.dtype)
        else:
            weight = torch.tensor(member.weight if weights == "samples" else 1.0, dtype=output.dtype)
        total = total + weight
        ratio = weight / total.clamp_min(_TINY)
        folded = folded + ((output if mix == "logits" else probs) - folded) * ratio
        if mix == "losses":
            constant = constant + (torch.xlogy(probs, probs) - constant) * ratio
    if float(total.sum()) <= 0:
        raise ValueError("the members of an ensemble must have weight; all of them weigh 0")
    teacher = torch.softmax(folded / temperature, dim=1) if mix == "logits" else folded
    if weights == "labels":  # class by class the weights differ, so rows no longer sum to one
        mass = teacher.sum(1, keepdim=True)
        teacher = torch.where(mass > _TINY, teacher / mass.clamp_min(_TINY), 1 / teacher.shape[1])
        constant = constant / mass.clamp_min(_TINY)
    if mix != "losses":
        constant = torch.xlogy(teacher, teacher)
    return Target(teacher, constant.sum(1))
