"""Stage 2: several models as one teacher.

Members compute their outputs one after the other, and these are folded into a running weighted mean. So memory holds
the mean and the outputs of one member, for any number of members.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwater.core.params import Params
from headwater.specs import Mix, Weights
from headwater.tasks.flat_module import precise, room, share
from headwater.tasks.robust import Robust, agreement
from headwater.tasks.task import TaskContext

BLOCK = 8192  # rows
_TINY = 1e-30


@dataclass(frozen=True)
class Target:
    """Soft targets for a student.

    Args:
        probs: one probability vector per sample.
        constant: the part of each sample's loss that does not depend on the student: Σ_k a_k Σ_c p_k log p_k for mix
            "losses", Σ_c q log q otherwise.
    """

    probs: Tensor
    constant: Tensor

    def loss(self, batch: Tensor, output: Tensor, temperature: float) -> Tensor:
        """Mean KL(teacher ‖ student) over a batch; its gradient is that of the soft-target cross-entropy.

        Args:
            batch: which samples.
            output: the student's logits for these.
            temperature: of the student's softmax.
        """
        log_student = torch.log_softmax(output / temperature, dim=1)
        return (self.constant[batch] - (self.probs[batch] * log_student).sum(1)).mean()

    def accuracy(self, y: Tensor) -> float:
        """Accuracy of the teacher."""
        return share(self.probs.argmax(1) == y)


class Fold:
    """A running weighted mean of members' outputs, which keeps none of them.

    Args:
        mix: "probs" and "losses" average softmax outputs, "logits" averages logits.
        weights: weight of a member: "samples" it was trained on; "uniform"; "labels": its count of each class;
            "learned": the share that `learn` found; "confidence": one minus the entropy of its prediction for the
            sample, relative to that of a uniform guess; "agreement": how near its predictions are to the median of all.
        temperature: of the members' softmax.
        counts: member → samples by class, for "labels".
        shares: member → share, for "learned".
        sharpen: τ: the mean of probabilities is taken to the power 1/τ and normalised.
        robust: a rule that takes the place of the mean.
    """

    def __init__(
        self,
        *,
        mix: Mix = "probs",
        weights: Weights = "samples",
        temperature: float = 1.0,
        counts: Mapping[str, Tensor] | None = None,
        shares: Mapping[str, float] | None = None,
        sharpen: float = 1.0,
        robust: Robust | None = None,
    ) -> None:
        if weights == "labels" and counts is None:
            raise ValueError("weights = 'labels' needs the members' label counts")
        if weights == "learned" and shares is None:
            raise ValueError("weights = 'learned' needs the members' shares")
        self._mix, self._weights, self._temperature, self._sharpen = mix, weights, temperature, sharpen
        self._counts, self._shares = counts or {}, shares or {}
        self._robust = robust or Robust()
        self._waiting: dict[str, tuple[float, Tensor]] | None = None  # members, where all are needed at once
        if self._robust.rule != "none" or weights == "agreement":
            self._waiting = {}
        self._mean: Tensor | None = None
        self._constant = self._total = torch.empty(0)

    @torch.no_grad()
    def add(self, name: str, samples: float, output: Tensor) -> None:
        """Add a member.

        Args:
            name: its name, by which counts and shares are found.
            samples: its weight.
            output: its logits, one row per input.
        """
        if self._waiting is not None:
            self._waiting[name] = (samples, output)
            return
        by_confidence = self._weights == "confidence"
        if self._mean is None:
            self._mean = room(tuple(output.shape), output.dtype, output.device).zero_()
            kept = tuple(output.shape) if self._mix == "losses" else (len(output), 0)
            self._constant = room(kept, output.dtype, output.device).zero_()
            self._total = output.new_zeros((len(output), 1) if by_confidence else ())
        if not by_confidence:
            weight = self._weight(name, samples).to(output.dtype)
            self._total = self._total + weight
        for rows in _blocks(len(output)):
            logits = output[rows]
            probs = torch.softmax(logits / self._temperature, dim=1)
            total = self._total
            if by_confidence:
                negative_entropy = torch.xlogy(probs, probs).sum(1, keepdim=True)
                weight = 1 + negative_entropy / math.log(max(2, logits.shape[1])) + 1e-6
                total = self._total[rows].add_(weight)
            ratio = weight / total.clamp_min(_TINY)
            mean = self._mean[rows]
            mean += ((logits if self._mix == "logits" else probs) - mean) * ratio
            if self._mix == "losses":
                constant = self._constant[rows]
                constant += (torch.xlogy(probs, probs) - constant) * ratio

    def _weight(self, name: str, samples: float) -> Tensor:
        if self._weights == "labels":
            return self._counts[name]
        if self._weights in ("learned", "agreement"):
            return torch.tensor(self._shares[name], dtype=torch.float64)
        return torch.tensor(samples if self._weights == "samples" else 1.0, dtype=torch.float64)

    @torch.no_grad()
    def target(self) -> Target:
        """The soft targets. Call it once, at the end: it turns the mean into the targets in place."""
        if self._waiting:
            self._combine(self._waiting)
        if self._mean is None:
            raise ValueError("an ensemble needs at least one member")
        if float(self._total.sum()) <= 0 and len(self._mean):
            raise ValueError("the members of an ensemble must have weight; all of them weigh 0")
        constant = self._mean.new_empty(len(self._mean))
        for rows in _blocks(len(self._mean)):
            teacher, part = self._mean[rows], self._constant[rows]
            if self._mix == "logits":
                teacher = torch.softmax(teacher / self._temperature, dim=1)
            if self._weights == "labels":  # class by class the weights differ, so rows no longer sum to one
                mass = teacher.sum(1, keepdim=True)
                teacher = torch.where(mass > _TINY, teacher / mass.clamp_min(_TINY), 1 / teacher.shape[1])
                part = part / mass.clamp_min(_TINY)
            if self._sharpen != 1:
                teacher = torch.softmax(teacher.log() / self._sharpen, dim=1)
            if self._mix != "losses":
                part = torch.xlogy(teacher, teacher)
            self._mean[rows] = teacher
            constant[rows] = part.sum(1)
        return Target(self._mean, constant)

    def _combine(self, members: Mapping[str, tuple[float, Tensor]]) -> None:
        """Fold the members that waited, by their agreement or by the rule."""
        self._waiting = None
        if self._weights == "agreement":
            probs = torch.stack([torch.softmax(out / self._temperature, dim=1) for _, out in members.values()])
            self._shares = dict(zip(members, agreement(probs), strict=True))
        if not self._robust.active(len(members)):
            for name, (samples, output) in members.items():
                self.add(name, samples, output)
            return
        rows = [
            out if self._mix == "logits" else torch.softmax(out / self._temperature, 1) for _, out in members.values()
        ]
        weights = [
            float(self._weight(name, samples).mean()) if self._weights != "confidence" else 1.0
            for name, (samples, _) in members.items()
        ]
        combined = self._robust.combined(torch.stack([row.reshape(-1) for row in rows]), weights).view(rows[0].shape)
        if self._mix != "logits":
            combined = combined.clamp_min(0)
            combined = combined / combined.sum(1, keepdim=True).clamp_min(_TINY)
        self._mean, self._total = combined, combined.new_ones(())
        self._constant = torch.xlogy(combined, combined) if self._mix == "losses" else combined[:, :0]


def _blocks(rows: int) -> Iterator[slice]:
    """Rows in blocks, so that intermediate results take little memory."""
    for at in range(0, rows, BLOCK):
        yield slice(at, min(rows, at + BLOCK))


def ensemble(
    ctx: TaskContext,
    members: Mapping[str, Params],
    x: Tensor,
    outputs: Mapping[str, Tensor] | None = None,
    slot: int = 0,
    **options: Any,
) -> Target:
    """Soft targets of an ensemble.

    Args:
        ctx: where it runs.
        members: name → model.
        x: inputs.
        outputs: logits of members that were computed before.
        slot: of the modules that compute them, as for `ctx.flat_module`.
        options: those of `Fold`.
    """
    fold, known = Fold(**options), outputs or {}
    for name, member in members.items():
        fold.add(name, member.weight, known[name] if name in known else ctx.flat_module(member, slot).outputs(x))
    return fold.target()


def learn(logits: Mapping[str, Tensor], y: Tensor, *, mix: Mix = "probs", temperature: float = 1.0) -> dict[str, float]:
    """Learn the members' shares, which add up to 1, so that the teacher's cross-entropy with true labels is least.

    The problem is convex in the shares and starts at equal ones, so the same rows give the same shares. Shares of
    probabilities are found by expectation maximisation, shares of logits by L-BFGS on numbers whose softmax they are.

    Args:
        logits: member → its logits for the rows.
        y: true labels of the rows.
        mix: what is averaged over members.
        temperature: of the members' softmax.
    """
    outputs, y = [precise(output) / temperature for output in logits.values()], y.cpu()
    if mix == "logits":
        shares = _by_descent(torch.stack(outputs), y)
    else:  # only a member's probability of the true class matters, and of each sample only the ratios between members
        truth = y.unsqueeze(1)
        logs = torch.stack([torch.log_softmax(output, 1).gather(1, truth).squeeze(1) for output in outputs])
        shares = _by_expectation((logs - logs.amax(0)).exp())
    return dict(zip(logits, shares.tolist(), strict=True))


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
        entropy = torch.nn.functional.cross_entropy(mean, y)
        entropy.backward()  # type: ignore[no-untyped-call]
        return entropy

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return torch.softmax(free.detach(), 0)
