"""Label skew: the samples of each class are distributed by Dirichlet shares."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.partition.base import Alpha, Ints, Partitioner, check, draw, gather, whole
from headwater.registry import Info
from headwater.specs import STRICT


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Dirichlet(Partitioner):
    """For each class, the clients' shares are one draw from a symmetric Dirichlet distribution.

    Sizes are unequal, and a client may stay empty.

    Args:
        alpha: concentration. A small one leaves a class with few clients, a large one spreads it evenly.
        drop_remainders: leave out the samples that remain after rounding down, as the code of the FedHEAD paper does,
            instead of giving them to the largest remainders.
    """

    INFO = Info(
        "dirichlet",
        "each class over the clients by Dirichlet shares; labels and sizes both unequal (alpha, drop_remainders)",
    )

    alpha: Alpha = 0.1
    drop_remainders: bool = False

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
