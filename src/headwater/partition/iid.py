"""Independent and identically distributed clients."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.partition.base import Ints, Partitioner, check
from headwater.registry import Info
from headwater.specs import STRICT


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Iid(Partitioner):
    """Samples are shuffled and cut into equal parts.

    Sizes differ by at most one; with fewer samples than clients the last clients stay empty.
    """

    INFO = Info("iid", "every client a fair sample of the whole, sizes within one")

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        order = rng.permutation(len(check(labels, clients))).astype(np.int64)
        return [np.sort(part) for part in np.array_split(order, clients)]
