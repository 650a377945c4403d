"""Label skew by client: each class is shared out in proportions drawn from a symmetric Dirichlet distribution.

A small alpha leaves a class with few clients, a large one spreads it evenly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.partition.base import Ints, check, gather
from headwater.specs import STRICT

Shares = np.ndarray[Any, np.dtype[np.float64]]
REDRAWS = 10_000  # a few seconds at most; a split that is not found by then is too unlikely to wait for


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Dirichlet:
    """One independent draw a class. Sizes are unequal and a client may stay empty.

    Every sample is used: what is left after rounding down goes to the largest remainders. `drop_remainders` leaves it
    out instead, as the program behind the FedHEAD paper does.
    """

    alpha: float = 0.1
    drop_remainders: bool = False

    @model_validator(mode="after")
    def _above_zero(self) -> Dirichlet:
        check_alpha(self.alpha)
        return self

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        parts: list[list[Ints]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label)).astype(np.int64)
            share = draw(rng, self.alpha, clients)
            sizes = (
                np.floor(share * len(members)).astype(np.int64) if self.drop_remainders else whole(share, len(members))
            )
            for client, piece in enumerate(np.split(members, np.cumsum(sizes))[:clients]):
                parts[client].append(piece)
        return gather(parts)


@dataclass(frozen=True, config=STRICT, kw_only=True)
class DirichletBalanced:
    """Class after class, but a client that has its fair share of samples gets no more of the later classes; the whole
    is drawn again until every client has at least `min_size` samples (as in PFNM, FedHKD and MOON)."""

    alpha: float = 0.1
    min_size: int = 10

    @model_validator(mode="after")
    def _accepted(self) -> DirichletBalanced:
        check_alpha(self.alpha)
        if self.min_size < 0:
            raise ConfigError(f"min_size must be 0 or more samples a client, got {self.min_size}")
        return self

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        if clients * self.min_size > len(labels):
            raise ConfigError(
                f"{len(labels)} samples cannot give {clients} clients {self.min_size} each; "
                f"use fewer clients or a min_size of at most {len(labels) // clients}"
            )
        members = [np.flatnonzero(labels == label).astype(np.int64) for label in np.unique(labels)]
        for _ in range(REDRAWS):
            sizes = self._sizes([len(m) for m in members], clients, rng)
            if sizes is not None and sizes.sum(axis=0).min() >= self.min_size:
                break
        else:
            raise ConfigError(
                f"no split with at least {self.min_size} samples for each of {clients} clients turned up in {REDRAWS} "
                f"draws at alpha {self.alpha}; raise alpha, or lower min_size or the number of clients"
            )
        parts: list[list[Ints]] = [[] for _ in range(clients)]
        for row, found in zip(sizes, members, strict=True):
            for client, piece in enumerate(np.split(rng.permutation(found), np.cumsum(row))[:clients]):
                parts[client].append(piece)
        return gather(parts)

    def _sizes(self, totals: list[int], clients: int, rng: np.random.Generator) -> Ints | None:
        """One draw of (classes, clients) sizes; none if a class found every client with a share already full."""
        fair, held, rows = sum(totals) / clients, np.zeros(clients, np.int64), []
        for total in totals:
            share = draw(rng, self.alpha, clients) * (held < fair)
            if not share.sum() > 0:
                return None
            rows.append(whole(share / share.sum(), total))
            held = held + rows[-1]
        return np.stack(rows)


def draw(rng: np.random.Generator, alpha: float, clients: int) -> Shares:
    """Proportions whose sum is 1, not 0.9999…, which rounding down would turn into a lost sample."""
    share: Shares = rng.dirichlet(np.full(clients, alpha))
    share /= share.sum()
    return share


def whole(share: Shares, total: int) -> Ints:
    """Whole numbers in these proportions that sum to `total`: rounded down, the rest to the largest remainders."""
    exact = share * total
    sizes = np.floor(exact).astype(np.int64)
    rest = total - int(sizes.sum())
    # Rounded, so that remainders which differ only by noise in the last bits tie and go to the lower client number.
    order = np.argsort(-np.round(exact - sizes, 9), kind="stable")
    sizes[order[:rest]] += 1
    return sizes


def check_alpha(alpha: float, key: str = "alpha") -> None:
    if not alpha > 0 or math.isinf(alpha):
        raise ConfigError(
            f"partition.{key} must be a finite number above 0, got {alpha}; "
            "0.1 makes clients very unlike each other, 100 nearly alike"
        )
