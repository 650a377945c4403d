"""Robust fusion: combine models or predictions of which some may be wrong on purpose.

A single member can move a weighted mean to any value. The rules here bound the effect of a minority. They work on rows
of a matrix: the vectors of models, or the flattened predictions of teachers, so they serve unequal architectures too.
Members count alike, since the weight of a member is what its sender says of itself; only "norm-bound" keeps weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwater.core.params import By, Params, average_of
from headwater.specs import RobustRule

FEWEST = 3  # among two members no rule can tell which one is wrong
_ITERATIONS, _ENOUGH, _SMOOTH = 100, 1e-9, 1e-12


@dataclass(frozen=True)
class Robust:
    """How members are combined at a tier.

    Args:
        rule: the rule; "none" is the weighted mean.
        share: share of members that are assumed to be wrong, below a half.
    """

    rule: RobustRule = "none"
    share: float = 0.2

    def active(self, members: int) -> bool:
        """Whether the rule applies to so many members."""
        return self.rule != "none" and members >= FEWEST

    def combined(self, rows: Tensor, weights: Sequence[float]) -> Tensor:
        """One row out of many.

        Args:
            rows: one member per row.
            weights: of the members, for "norm-bound".
        """
        if not (rows.is_cpu or rows.is_meta):  # not every device sorts alike, or has numbers of 64 bits
            return self.combined(rows.cpu(), weights).to(rows.device)
        if self.rule == "norm-bound":
            return _norm_bound(rows, weights)
        wrong = wrong_of(len(rows), self.share)
        rule: Callable[[Tensor, int], Tensor] = _RULES[self.rule]
        return rule(rows, wrong)


def wrong_of(members: int, share: float) -> int:
    """How many members are assumed to be wrong: the share, rounded up, and always fewer than half of them."""
    return min(math.ceil(share * members), (members - 1) // 2)


def fused(models: Mapping[str, Params], by: By, robust: Robust) -> Params:
    """The models combined by a rule; their weighted mean without one. The weight is the sum of the models' weights.

    Batch-norm statistics are combined as parameters are, and counters by their median.

    Args:
        models: sender → model; all of one architecture.
        by: weights, as in `average`.
        robust: the rule.
    """
    if robust.rule == "none":
        return average_of(models, by)
    by_sender = dict(models.items())  # a rule needs all of them at once
    if not robust.active(len(by_sender)):
        return average_of(by_sender, by)
    members = list(by_sender.values())
    layout = members[0].layout
    for member in members:
        if member.layout.trainable != layout.trainable:
            raise ValueError(f"cannot combine {member.layout.arch!r} with {layout.arch!r}: they differ in shape")
    weights = [1.0 if by == "uniform" else member.weight for member in members]
    vector = robust.combined(torch.stack([member.vector for member in members]), weights)
    if layout.buffers == "first":
        vector[layout.size :] = members[0].vector[layout.size :]
    counters = members[0].counters.clone()
    if counters.numel():
        counters = torch.stack([member.counters for member in members]).median(0).values
    return Params(vector, counters, layout, sum(member.weight for member in members))


def agreement(probs: Tensor) -> list[float]:
    """Weights of members by how near their predictions are to the median prediction.

    A member's distance is the mean total variation between its probabilities and the median ones. A member at three
    times the median distance, or farther away, has weight 0.

    Args:
        probs: (member, row, class).
    """
    middle = _median(probs, 0)
    middle = middle / middle.sum(-1, keepdim=True).clamp_min(_SMOOTH)
    distance = 0.5 * (probs - middle).abs().sum(-1).mean(-1)
    usual = float(_median(distance, 0))
    if usual <= 0:
        return [float(d <= 0) for d in distance.tolist()]
    return [max(0.0, 1 - d / (3 * usual)) for d in distance.tolist()]


def _median(rows: Tensor, wrong: int) -> Tensor:
    """Median of each coordinate; the mean of the two middle ones for an even number of members."""
    ordered = rows.sort(0).values
    middle = len(rows) // 2
    return ordered[middle] if len(rows) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def _trimmed_mean(rows: Tensor, wrong: int) -> Tensor:
    """Mean of each coordinate without its largest and its smallest values."""
    return rows.sort(0).values[wrong : len(rows) - wrong].mean(0)


def _scores(rows: Tensor, wrong: int) -> Tensor:
    """Krum's score of each member: the sum of its squared distances to its nearest neighbours."""
    neighbours = max(1, len(rows) - wrong - 2)
    distances = torch.stack([(rows - row).double().square().sum(1) for row in rows])
    distances.fill_diagonal_(math.inf)
    return distances.sort(1).values[:, :neighbours].sum(1)


def _krum(rows: Tensor, wrong: int) -> Tensor:
    """The member with the best score; the first one of several."""
    return rows[_scores(rows, wrong).sort(stable=True).indices[0]].clone()


def _multi_krum(rows: Tensor, wrong: int) -> Tensor:
    """Mean of the members with the best scores: all but those that are assumed to be wrong."""
    best = _scores(rows, wrong).sort(stable=True).indices[: len(rows) - wrong]
    return rows[best.sort().values].mean(0)


def _geometric_median(rows: Tensor, wrong: int) -> Tensor:
    """The point with the least sum of distances to all members, by Weiszfeld's iteration."""
    wide = rows.double()
    point = wide.mean(0)
    for _ in range(_ITERATIONS):
        pull = 1 / (wide - point).norm(dim=1).clamp_min(_SMOOTH)
        better = (pull / pull.sum()) @ wide
        near = float((better - point).norm()) <= _ENOUGH * max(1.0, float(better.norm()))
        point = better
        if near:
            break
    return point.to(rows.dtype)


def _norm_bound(rows: Tensor, weights: Sequence[float]) -> Tensor:
    """Weighted mean of members, each brought as near to the median of all as the median member is."""
    centre = _median(rows, 0)
    away = rows - centre
    lengths = away.double().norm(dim=1)
    bound = lengths.median()
    factor = torch.where(lengths > bound, bound / lengths.clamp_min(_SMOOTH), torch.ones_like(lengths))
    share = torch.tensor(weights, dtype=torch.float64)
    share = share / share.sum() if float(share.sum()) > 0 else torch.full_like(share, 1 / len(share))
    return centre + ((share * factor).to(rows.dtype).unsqueeze(1) * away).sum(0)


_RULES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "median": _median,
    "trimmed-mean": _trimmed_mean,
    "krum": _krum,
    "multi-krum": _multi_krum,
    "geometric-median": _geometric_median,
}
