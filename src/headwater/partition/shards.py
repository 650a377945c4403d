"""Few classes per client: samples sorted by label are cut into pieces."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.partition.base import Ints, Partitioner, check, gather
from headwater.registry import Info
from headwater.specs import STRICT, AtLeastOne


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Shards(Partitioner):
    """Samples sorted by label are cut into equal pieces, and each client gets some at random (McMahan et al., 2017).

    Args:
        shards: pieces per client, which is about the largest number of classes that it holds.
    """

    INFO = Info("shards", "sorted by label, cut and dealt: each client a few pieces of one class or two (shards)")

    shards: AtLeastOne = 2

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        order = rng.permutation(len(labels)).astype(np.int64)
        pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], clients * self.shards)
        dealt = rng.permutation(len(pieces)).reshape(clients, self.shards)
        return gather([[pieces[piece] for piece in own] for own in dealt])
