"""Label skew inside blocks of clients that share nothing with each other."""

from __future__ import annotations

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.partition.base import Ints, check
from headwater.partition.dirichlet import DirichletBalanced, check_alpha
from headwater.specs import STRICT


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Blocked:
    """As the program behind the FedDF paper does it: the samples are shuffled and cut into chunks, one for every
    `block` clients in a row (the last may have fewer), in proportion to their number; inside a block each class is
    shared out by balanced Dirichlet shares, and no client gets less than half of the block's mean.

    Twenty clients are therefore two independent draws over ten, which is not what one draw over twenty gives.
    """

    alpha: float = 0.1
    block: int = 10

    @model_validator(mode="after")
    def _accepted(self) -> Blocked:
        check_alpha(self.alpha)
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
