"""Unequal sizes with the same label shares."""

from __future__ import annotations

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.partition.base import Alpha, Ints, Partitioner, check, draw, whole
from headwater.registry import Info
from headwater.specs import STRICT


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Quantity(Partitioner):
    """Samples are shuffled and cut by Dirichlet shares: every client has a fair sample of the whole, of unequal size.

    Args:
        alpha: concentration; a small one makes sizes very unequal.
        min_size: samples that every client gets before the rest is shared.
    """

    INFO = Info("quantity", "labels alike, sizes unequal: shuffled and cut by Dirichlet shares (alpha, min_size)")

    alpha: Alpha = 0.5
    min_size: int = 1

    @model_validator(mode="after")
    def _accepted(self) -> Quantity:
        if self.min_size < 0:
            raise ConfigError(f"partition.min_size must be 0 or more samples per client, got {self.min_size}")
        return self

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        rest = len(labels) - clients * self.min_size
        if rest < 0:
            raise ConfigError(
                f"{len(labels)} samples cannot give {clients} clients {self.min_size} each; "
                f"use fewer clients or a partition.min_size of at most {len(labels) // clients}"
            )
        order = rng.permutation(len(labels)).astype(np.int64)
        sizes = self.min_size + whole(draw(rng, self.alpha, clients), rest)
        return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]
