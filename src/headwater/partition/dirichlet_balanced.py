"""Label skew by Dirichlet shares with a least size per client."""

from __future__ import annotations

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.partition.base import Alpha, Ints, Partitioner, check, draw, gather, whole
from headwater.registry import Info
from headwater.specs import STRICT

REDRAWS = 10_000  # a few seconds at most; a less likely split is refused


@dataclass(frozen=True, config=STRICT, kw_only=True)
class DirichletBalanced(Partitioner):
    """Dirichlet shares class by class; a client that already has its fair share of samples gets no more.

    The whole is drawn again until every client has at least `min_size` samples, as in PFNM, FedHKD and MOON.

    Args:
        alpha: concentration, as for `dirichlet`.
        min_size: the least number of samples per client.
    """

    INFO = Info(
        "dirichlet-balanced", "as dirichlet, but full clients get no more and none stays small (alpha, min_size)"
    )

    alpha: Alpha = 0.1
    min_size: int = 10

    @model_validator(mode="after")
    def _accepted(self) -> DirichletBalanced:
        if self.min_size < 0:
            raise ConfigError(f"min_size must be 0 or more samples per client, got {self.min_size}")
        return self

    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> list[Ints]:
        labels = check(labels, clients)
        if clients * self.min_size > len(labels):
            raise ConfigError(
                f"{len(labels)} samples cannot give {clients} clients {self.min_size} each; "
                f"use fewer clients or a min_size of at most {len(labels) // clients}"
            )
        members = [np.flatnonzero(labels == label).astype(np.int64) for label in np.unique(labels)]
        for _ in range(REDRAWS):
            sizes = self._sizes([len(m) for m in members], clients, rng)
            if sizes is not None and sizes.sum(axis=0).min() >= self.min_size:
                break
        else:
            raise ConfigError(
                f"no split with at least {self.min_size} samples for each of {clients} clients turned up in {REDRAWS} "
                f"draws at alpha {self.alpha}; raise alpha, or lower min_size or the number of clients"
            )
        parts: list[list[Ints]] = [[] for _ in range(clients)]
        for row, samples in zip(sizes, members, strict=True):
            for client, piece in enumerate(np.split(rng.permutation(samples), np.cumsum(row))[:clients]):
                parts[client].append(piece)
        return gather(parts)

    def _sizes(self, totals: list[int], clients: int, rng: np.random.Generator) -> Ints | None:
        """One draw of sizes (classes, clients); None if all clients with a share of some class are already full."""
        fair, sizes, rows = sum(totals) / clients, np.zeros(clients, np.int64), []
        for total in totals:
            share = draw(rng, self.alpha, clients) * (sizes < fair)
            if not share.sum() > 0:
                return None
            rows.append(whole(share / share.sum(), total))
            sizes = sizes + rows[-1]
        return np.stack(rows)
