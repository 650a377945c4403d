"""Who takes part in a round, and who is lost in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from headwater.core.rng import stream
from headwater.core.tree import Tree


def participants(tree: Tree, share: float, seed: int, round: int) -> tuple[str, ...]:
    """A uniform draw of max(1, round(share · N)) among the clients that hold data, in tree order."""
    holders = tree.holders
    if share >= 1:
        return tuple(holders)
    count = max(1, round_half_up(share * len(holders)))
    drawn = stream(seed, "participation", round).choice(len(holders), size=count, replace=False)
    return tuple(f"c{number}" for number in holders.numbers[np.sort(drawn)].tolist())


def round_half_up(number: float) -> int:
    """Halves go up, where Python's own rounding goes to the even number: 2.5 clients are 3."""
    return int(number + 0.5)


Remainder = Literal["front", "main"]
Cohorts = dict[int, tuple[str, ...]]  # by the number of the model; a model that nobody trains is left out


def deal(
    clients: Sequence[str], cohorts: int, rng: np.random.Generator, remainder: Remainder = "front", first: int = 0
) -> Cohorts:
    """A random split into cohorts of equal size, numbered from `first`, each in the order of `clients`.

    What is left over goes one each to the first cohorts (`front`), or all to the first one (`main`).
    """
    order = rng.permutation(len(clients))
    each, left = divmod(len(clients), cohorts)
    extra = [left] + [0] * (cohorts - 1) if remainder == "main" else [int(k < left) for k in range(cohorts)]
    ends = np.cumsum([0, *(each + more for more in extra)])
    dealt = {first + k: sorted(order[ends[k] : ends[k + 1]]) for k in range(cohorts)}
    return {k: tuple(clients[i] for i in members) for k, members in dealt.items() if members}


def turns(clients: Sequence[str], cohorts: int, seed: int, round: int) -> Cohorts:
    """By turns: in a block of as many rounds as there are models, each client trains each model once, in an order of
    its own that is drawn anew for every block."""
    block, turn = divmod(round - 1, cohorts)
    turn_of = {c: int(stream(seed, "turns", block, c).permutation(cohorts)[turn]) for c in clients}
    found = {k: tuple(c for c in clients if turn_of[c] == k) for k in range(cohorts)}
    return {k: members for k, members in found.items() if members}
