"""Who takes part in a round, and who is lost in it."""

from __future__ import annotations

import numpy as np

from headwater.rng import stream
from headwater.topology.tree import Tree


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
