"""A taste for classes by client: each draws a class prior from a symmetric Dirichlet distribution, and all get alike
many samples."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.partition.base import Ints, check
from headwater.partition.dirichlet import Shares, check_alpha, draw
from headwater.specs import STRICT


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ClientPrior:
    """Sizes differ by at most one and every sample is used, so that only the label shares are unequal.

    One sample at a time goes to a client that still has room, of a class drawn from that client's prior. A class that
    has run out is drawn again (as in FedDyn, MTGC, FedEED and the appendix of FedDF); where a client's prior leaves
    nothing to any class that is left, all those are equally likely.
    """

    alpha: float = 0.1

    @model_validator(mode="after")
    def _above_zero(self) -> ClientPrior:
        check_alpha(self.alpha)
        return self

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        return fill(labels, even(len(labels), clients), self.alpha, rng)


def fill(labels: Ints, sizes: Ints, alpha: float, rng: np.random.Generator) -> list[Ints]:
    """The numbers of all samples, dealt to parties of these sizes by a class prior each."""
    kinds, counts = np.unique(labels, return_counts=True)
    priors = np.stack([draw(rng, alpha, len(kinds)) for _ in sizes])
    # The last of each list is the next to go.
    stock = [rng.permutation(np.flatnonzero(labels == kind)).tolist() for kind in kinds]
    parts: list[list[int]] = [[] for _ in sizes]
    rows = _cumulated(priors, counts > 0)
    for party, chance in zip(_turns(sizes, rng), rng.random(len(labels)).tolist(), strict=True):
        row = rows[party]
        # Drawing among the classes that are left is drawing again until one of them comes up. A product that is
        # rounded up to the whole sum stands for the last class with a share of it.
        kind = bisect_right(row, chance * row[-1])
        kind = kind if kind < len(row) else bisect_left(row, row[-1])
        parts[party].append(stock[kind].pop())
        if not stock[kind]:
            rows = _cumulated(priors, np.array([len(members) > 0 for members in stock]))
    return [np.sort(np.array(part, np.int64)) for part in parts]


def even(total: int, parties: int) -> Ints:
    """`total` in sizes that differ by at most one, the larger ones first."""
    sizes = np.full(parties, total // parties, np.int64)
    sizes[: total % parties] += 1
    return sizes


def _cumulated(priors: Shares, left: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[list[float]]:
    """The running sums of each party's prior over the classes that are left."""
    open_to = priors * left
    open_to = np.where(open_to.sum(axis=1, keepdims=True) > 0, open_to, left)
    rows: list[list[float]] = np.cumsum(open_to, axis=1).tolist()
    return rows


def _turns(sizes: Ints, rng: np.random.Generator) -> Iterator[int]:
    """Whose turn it is: any party that still has room, each equally likely, until all are full."""
    room = sizes.tolist()
    left = sum(room)
    while left:
        for party in rng.integers(len(room), size=max(left, len(room))).tolist():
            if room[party]:
                room[party] -= 1
                left -= 1
                yield party
