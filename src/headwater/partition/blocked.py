"""Label skew inside blocks of clients, as in FedDF's code."""

from __future__ import annotations

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.partition.base import Alpha, Ints, Partitioner, check
from headwater.partition.dirichlet_balanced import DirichletBalanced
from headwater.registry import Info
from headwater.specs import STRICT


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Blocked(Partitioner):
    """Independent balanced Dirichlet splits over blocks of clients.

    The samples are shuffled and cut into one chunk per block, in proportion to its number of clients. Inside a block no
    client gets less than half of the block's mean. Twenty clients in blocks of ten are two independent draws over ten,
    which differs from one draw over twenty.

    Args:
        alpha: concentration, as for `dirichlet`.
        block: clients per block; the last block may have fewer.
    """

    INFO = Info(
        "blocked",
        "balanced Dirichlet shares inside blocks of clients that share nothing, as FedDF's code (alpha, block)",
    )

    alpha: Alpha = 0.1
    block: int = 10

    @model_validator(mode="after")
    def _accepted(self) -> Blocked:
        if self.block < 1:
            raise ConfigError(f"partition.block must be at least 1 client, got {self.block}; FedDF has 10")
        return self

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        if clients < self.block:
            raise ConfigError(
                f"partition.scheme 'blocked' cuts clients into blocks of {self.block}, but there are only {clients}; "
                "use more clients, a smaller partition.block, or 'dirichlet-balanced', which is a single block"
            )
        order = rng.permutation(len(labels)).astype(np.int64)
        ends = [min(start + self.block, clients) for start in range(0, clients, self.block)]
        cuts = [len(labels) * end // clients for end in ends]
        parts: list[Ints] = []
        for chunk, end in zip(np.split(order, cuts), ends, strict=False):  # nothing is left after the last cut
            parts += self._inside(labels, np.sort(chunk), end - len(parts), rng)
        return parts

    def _inside(self, labels: Ints, chunk: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        if not len(chunk):
            return [chunk] * clients
        scheme = DirichletBalanced(alpha=self.alpha, min_size=len(chunk) // (2 * clients))
        return [chunk[part] for part in scheme.split(labels[chunk], clients, rng)]
