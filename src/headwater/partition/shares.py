"""Random shares that several schemes use: Dirichlet shares, whole numbers in given proportions, class priors."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np

from headwater.errors import ConfigError
from headwater.partition.partition import Ints

Shares = np.ndarray[Any, np.dtype[np.float64]]


def draw(rng: np.random.Generator, alpha: float, clients: int) -> Shares:
    """Shares of a symmetric Dirichlet distribution, scaled so that rounding down loses no sample.

    Args:
        rng: of the scheme.
        alpha: concentration.
        clients: how many shares.
    """
    share: Shares = rng.dirichlet(np.full(clients, alpha))
    share /= share.sum()
    return share


def whole(share: Shares, total: int) -> Ints:
    """Whole numbers in these proportions that sum to `total`: rounded down, the rest to the largest remainders.

    Args:
        share: proportions whose sum is 1.
        total: the sum of the result.
    """
    exact = share * total
    sizes = np.floor(exact).astype(np.int64)
    rest = total - int(sizes.sum())
    # Rounded, so that remainders that differ by floating-point noise tie; ties go to the lower client number.
    order = np.argsort(-np.round(exact - sizes, 9), kind="stable")
    sizes[order[:rest]] += 1
    return sizes


def check_alpha(alpha: float, key: str = "alpha") -> None:
    """Refuse a concentration that is not a finite number above 0."""
    if not alpha > 0 or math.isinf(alpha):
        raise ConfigError(
            f"partition.{key} must be a finite number above 0, got {alpha}; "
            "0.1 makes clients very unlike each other, 100 nearly alike"
        )


def fill(labels: Ints, sizes: Ints, alpha: float, rng: np.random.Generator) -> list[Ints]:
    """Distribute all samples over parties of these sizes, each with a class prior of its own.

    Args:
        labels: the class of each sample.
        sizes: the number of samples per party; their sum is that of the labels.
        alpha: concentration of the symmetric Dirichlet distribution that priors are drawn from.
        rng: of the scheme.

    Returns:
        Sorted sample numbers by party.
    """
    kinds, counts = np.unique(labels, return_counts=True)
    priors = np.stack([draw(rng, alpha, len(kinds)) for _ in sizes])
    # Samples are taken from the end of each list.
    stock = [rng.permutation(np.flatnonzero(labels == kind)).tolist() for kind in kinds]
    parts: list[list[int]] = [[] for _ in sizes]
    rows = _cumulated(priors, counts > 0)
    for party, chance in zip(_turns(sizes, rng), rng.random(len(labels)).tolist(), strict=True):
        row = rows[party]
        # Drawing among the classes that are left equals drawing again until one of them comes up. A product that is
        # rounded up to the whole sum means the last class with a share.
        kind = bisect_right(row, chance * row[-1])
        kind = kind if kind < len(row) else bisect_left(row, row[-1])
        parts[party].append(stock[kind].pop())
        if not stock[kind]:
            rows = _cumulated(priors, np.array([len(members) > 0 for members in stock]))
    return [np.sort(np.array(part, np.int64)) for part in parts]


def even(total: int, parties: int) -> Ints:
    """`total` in sizes that differ by at most one, the larger ones first.

    Args:
        total: the sum of the sizes.
        parties: how many sizes.
    """
    sizes = np.full(parties, total // parties, np.int64)
    sizes[: total % parties] += 1
    return sizes


def _cumulated(priors: Shares, left: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[list[float]]:
    """Cumulated prior of each party over the classes that are left; uniform where the prior leaves them nothing."""
    open_to = priors * left
    open_to = np.where(open_to.sum(axis=1, keepdims=True) > 0, open_to, left)
    rows: list[list[float]] = np.cumsum(open_to, axis=1).tolist()
    return rows


def _turns(sizes: Ints, rng: np.random.Generator) -> Iterator[int]:
    """The party that gets the next sample: random among those that have room, until all are full."""
    room = sizes.tolist()
    left = sum(room)
    while left:
        for party in rng.integers(len(room), size=max(left, len(room))).tolist():
            if room[party]:
                room[party] -= 1
                left -= 1
                yield party
