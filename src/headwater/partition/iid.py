"""Equal chance: the samples are shuffled and dealt out."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from headwater.partition.base import Ints, check
from headwater.specs import STRICT


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Iid:
    """Sizes differ by at most one; with fewer samples than clients the last ones stay empty."""

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        order = rng.permutation(len(check(labels, clients))).astype(np.int64)
        return [np.sort(part) for part in np.array_split(order, clients)]
