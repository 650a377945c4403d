"""Client sampling: who takes part in a round, and which cohort trains which of several models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from headwater.core.rng import stream
from headwater.core.tree import Tree


def participants(tree: Tree, share: float, seed: int, round: int) -> tuple[str, ...]:
    """Clients of a round: max(1, round(share · N)) drawn uniformly from those that hold data, in tree order.

    Args:
        tree: the tree.
        share: share of the clients, as `partition.participation`.
        seed: seed of the run.
        round: number of the round.
    """
    holders = tree.holders
    if share >= 1:
        return tuple(holders)
    count = max(1, round_half_up(share * len(holders)))
    drawn = stream(seed, "participation", round).choice(len(holders), size=count, replace=False)
    return tuple(f"c{number}" for number in holders.numbers[np.sort(drawn)].tolist())


def round_half_up(number: float) -> int:
    """Round halves up (2.5 gives 3), where Python's `round` goes to the even number."""
    return int(number + 0.5)


Remainder = Literal["front", "main"]
Cohorts = dict[int, tuple[str, ...]]  # model number → its clients; a model without clients is left out


def deal(
    clients: Sequence[str], cohorts: int, rng: np.random.Generator, remainder: Remainder = "front", first: int = 0
) -> Cohorts:
    """Random split into cohorts of equal size, each in the order of `clients`.

    Args:
        clients: clients of the round, in tree order.
        cohorts: number of cohorts.
        rng: random generator.
        remainder: clients left over go one each to the first cohorts ("front") or all to the first ("main").
        first: number of the first cohort.
    """
    order = rng.permutation(len(clients))
    each, left = divmod(len(clients), cohorts)
    extra = [left] + [0] * (cohorts - 1) if remainder == "main" else [int(k < left) for k in range(cohorts)]
    ends = np.cumsum([0, *(each + more for more in extra)])
    dealt = {first + k: sorted(order[ends[k] : ends[k + 1]]) for k in range(cohorts)}
    return {k: tuple(clients[i] for i in members) for k, members in dealt.items() if members}


def turns(clients: Sequence[str], cohorts: int, seed: int, round: int) -> Cohorts:
    """Cohorts by turns: in a block of `cohorts` rounds each client trains each model once.

    The order of a client's models is its own and is drawn again for every block.
    """
    block, turn = divmod(round - 1, cohorts)
    turn_of = {c: int(stream(seed, "turns", block, c).permutation(cohorts)[turn]) for c in clients}
    found = {k: tuple(c for c in clients if turn_of[c] == k) for k in range(cohorts)}
    return {k: members for k, members in found.items() if members}
