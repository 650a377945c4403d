"""Few classes a client: the samples in order of their labels are cut into pieces, and every client gets some."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.partition.base import Ints, check, gather
from headwater.specs import STRICT, AtLeastOne


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Shards:
    """Each client gets `shards` pieces at random (McMahan and others, 2017), and so about as many classes at most."""

    shards: AtLeastOne = 2

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        order = rng.permutation(len(labels)).astype(np.int64)
        pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], clients * self.shards)
        dealt = rng.permutation(len(pieces)).reshape(clients, self.shards)
        return gather([[pieces[piece] for piece in own] for own in dealt])
