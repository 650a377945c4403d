"""Membership inference: can rows that a model was trained on be told from rows that nobody trained on?

There are two attacks, and each gives one score per row. The first is the loss (Yeom, Giacomelli, Fredrikson, Jha:
Privacy Risk in Machine Learning, CSF 2018): rows with a small loss are called members. The second is the loss minus
that of a reference model, which was trained on public rows: a row that is easy for any model is no evidence.

Rows that nobody trained on are those of the test set, weighted so that their class shares are those of the client.
Otherwise a model that is good at its client's classes would look like one that remembers rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwater.core.rng import stream

LEAST = 8  # rows of a client below which its model is left out
RESAMPLES = 100
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, if there is one."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class MembershipRisk:
    """How well one attack separates members (rows that a model was trained on) from other rows.

    Args:
        auc: probability that a member has a higher score than a row that nobody trained on; 0.5 is guessing.
        advantage: true minus false positive rate at a threshold that was chosen on one half of the rows and used on the
            other; 0 is guessing.
        models: how many models were attacked.
        rows: members, over all models.
    """

    auc: Estimate
    advantage: Estimate
    models: int
    rows: int


@dataclass(frozen=True)
class MembershipScores:
    """Scores of an attack on one model. A higher score means that a row is more likely a member.

    Args:
        members: scores of rows that the model was trained on.
        others: scores of rows that nobody trained on, the same rows for every model.
        weights: of the others, so that their class shares are those of the members.
    """

    members: Floats
    others: Floats
    weights: Floats


def class_weights(member_labels: Ints, other_labels: Ints) -> Floats:
    """Weights that give the others the class shares of the members."""
    classes = int(max(member_labels.max(initial=0), other_labels.max(initial=0))) + 1
    share = np.bincount(member_labels, minlength=classes) / max(1, len(member_labels))
    count = np.bincount(other_labels, minlength=classes)
    weights: Floats = (share / np.maximum(count, 1))[other_labels]
    return weights


def auc_of(members: Floats, others: Floats, weights: Floats) -> float:
    """Probability that a member's score is larger than another row's; equal scores count half."""
    order = np.argsort(others)
    ranked, total = others[order], weights.sum()
    below = np.concatenate([[0.0], np.cumsum(weights[order])]) / total
    left, right = (below[np.searchsorted(ranked, members, side)] for side in ("left", "right"))
    return float((left + right).mean() / 2)


def _rates(members: Floats, others: Floats, weights: Floats, thresholds: Floats) -> Floats:
    """True minus false positive rate at each threshold."""
    order = np.argsort(others)
    below = np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
    false = 1 - below[np.searchsorted(others[order], thresholds, "left")]
    true = 1 - np.searchsorted(np.sort(members), thresholds, "left") / len(members)
    rates: Floats = true - false
    return rates


def _advantage(halves: Sequence[tuple[Floats, Floats, Floats]]) -> float:
    """Mean over both ways to choose a threshold on one half of the rows and to use it on the other."""
    advantages = []
    for chosen, used in (halves, halves[::-1]):
        thresholds = np.concatenate([chosen[0], chosen[1]])
        best = thresholds[int(np.argmax(_rates(*chosen, thresholds)))]
        advantages.append(float(_rates(*used, np.array([best]))[0]))
    return float(np.mean(advantages))


def membership(scores: Sequence[MembershipScores], seed: int = 0, resamples: int = RESAMPLES) -> MembershipRisk | None:
    """The mean over models, with an interval over models and rows; None if no model has enough rows.

    Args:
        scores: of each model.
        seed: of the halves and of the resampling.
        resamples: number of bootstrap resamples for the intervals; 0 leaves them out.
    """
    scores = [each for each in scores if len(each.members) >= LEAST and each.weights.sum() > 0]
    if not scores:
        return None
    draw = stream(seed, "membership")
    others = _split(len(scores[0].others), draw)
    members = [_split(len(each.members), draw) for each in scores]
    value = np.array([_both(each, mine, others) for each, mine in zip(scores, members, strict=True)]).mean(0)
    drawn = []
    for _ in range(resamples):
        outside = [draw.choice(half, len(half)) for half in others]  # the same for all models, which share these rows
        which = draw.integers(0, len(scores), len(scores))
        mine = [[draw.choice(half, len(half)) for half in members[at]] for at in which]
        pairs = [_both(scores[at], own, outside) for at, own in zip(which, mine, strict=True)]
        drawn.append(np.mean(pairs, axis=0))
    ends = np.quantile(np.array(drawn), [0.025, 0.975], axis=0).T.tolist() if drawn else [(None, None)] * 2
    rates = [Estimate(float(value[at]), *ends[at]) for at in (0, 1)]
    return MembershipRisk(rates[0], rates[1], len(scores), sum(len(each.members) for each in scores))


def _split(count: int, draw: np.random.Generator) -> list[Ints]:
    order = draw.permutation(count)
    return [order[: count // 2], order[count // 2 :]]


def _both(scores: MembershipScores, members: Sequence[Ints], others: Sequence[Ints]) -> tuple[float, float]:
    """AUC over all of these rows, and the advantage from half to half; those of guessing if a half has no weight."""
    mine, rest = np.concatenate(list(members)), np.concatenate(list(others))
    if min(scores.weights[half].sum() for half in others) <= 0:
        return 0.5, 0.0
    auc = auc_of(scores.members[mine], scores.others[rest], scores.weights[rest])
    halves = [(scores.members[a], scores.others[b], scores.weights[b]) for a, b in zip(members, others, strict=True)]
    return auc, _advantage(halves)
