"""Population: the round of W2 with more and more registered clients, of whom as many take part as before."""

from __future__ import annotations

from pathlib import Path

import packs
from contest import Contestant
from record import Claim

from works.base import Work
from works.w2 import tree_of


def work(quick: bool) -> Work:
    populations = (10**3, 10**4) if quick else (10**3, 10**4, 10**5, 10**6)
    names = [f"{count:,} clients".replace(",", " ") for count in populations]
    tree = tree_of(quick)
    tree["partition"] |= {"scheme": "drawn", "size": 50}
    rounds = tree["rounds"]

    def pack(path: Path) -> Path:
        return packs.plain(path, tree, *packs.images("fashion_mnist", 2_000 if quick else 50_000, quick=quick))

    return Work(
        f"W2's round with more and more registered clients, {rounds} rounds",
        [
            Contestant(name, "ours", (str(count),), stays=False)  # a process of its own, so that its peak is its own
            for name, count in zip(names, populations, strict=True)
        ],
        pack,
        names[0],
        [Claim(1.15, (names[0],), who=names[-1]), Claim(200, (names[0],), who=names[-1], what="memory")],
    )
