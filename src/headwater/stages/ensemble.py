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

from headwater.data.base import Examples
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
    shares: Mapping[str, float] | None = None,
    sharpen: float = 1.0,
) -> Target:
    """The teacher's outputs on `x`: each member sees each input once.

    `probs` and `losses` average softmax outputs, `logits` averages what goes into the softmax. A member weighs by its
    samples, like every other (`uniform`), by its count of each class (`labels`, needs `counts`), by the share that
    `learn` found for it (`learned`, needs `shares`), or the more the surer it is of the sample at hand (`confidence`:
    one minus its entropy relative to that of a uniform guess). `sharpen` = τ takes the mean of probabilities to the
    power 1/τ, so that below 1 the teacher is surer than its members together.
    """
    if not members:
        raise ValueError("an ensemble needs at least one member")
    if weights == "labels" and counts is None:
        raise ValueError("weights = 'labels' needs the members' label counts")
    if weights == "learned" and shares is None:
        raise ValueError("weights = 'learned' needs the members' shares")
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
        elif weights == "learned":
            assert shares is not None
            weight = torch.tensor(shares[name], dtype=output.dtype)
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
    if sharpen != 1:
        teacher = torch.softmax(teacher.log() / sharpen, dim=1)
    if mix != "losses":
        constant = torch.xlogy(teacher, teacher)
    return Target(teacher, constant.sum(1))


def learn(
    site: Site, members: Mapping[str, Params], rows: Examples, *, mix: Mix = "probs", temperature: float = 1.0
) -> dict[str, float]:
    """A share for each member, all together 1, with which the teacher's cross-entropy with true labels is least.

    Both problems are convex in the shares and start at equal ones: of probabilities the steps are those of expectation
    and maximisation, of logits those of L-BFGS on shares that are the softmax of free numbers. Either way the same rows
    give the same shares.
    """
    said = [site.bench(member).outputs(rows.x).double() / temperature for member in members.values()]
    if mix == "logits":
        shares = _by_descent(torch.stack(said), rows.y)
    else:  # only a member's probability of the true class matters, and of each sample only the ratios between members
        truth = rows.y.unsqueeze(1)
        logs = torch.stack([torch.log_softmax(out, 1).gather(1, truth).squeeze(1) for out in said])
        shares = _by_expectation((logs - logs.amax(0)).exp())
    return dict(zip(members, shares.tolist(), strict=True))


def _by_expectation(hit: Tensor, steps: int = 1000, enough: float = 1e-12) -> Tensor:
    """Shares of a mixture whose members give the samples these likelihoods, (member, sample)."""
    shares = torch.full((len(hit),), 1 / len(hit), dtype=torch.float64)
    for _ in range(steps):
        joint = shares.unsqueeze(1) * hit
        better = (joint / joint.sum(0).clamp_min(_TINY)).mean(1)
        better = better / better.sum()
        done = float((better - shares).abs().max()) < enough
        shares = better
        if done:
            break
    return shares


@torch.enable_grad()
def _by_descent(logits: Tensor, y: Tensor) -> Tensor:
    """Shares of a mean of logits, (member, sample, class)."""
    free = torch.zeros(len(logits), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [free], max_iter=300, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        mean = torch.einsum("k,knc->nc", torch.softmax(free, 0), logits)
        found = torch.nn.functional.cross_entropy(mean, y)
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return torch.softmax(free.detach(), 0)
