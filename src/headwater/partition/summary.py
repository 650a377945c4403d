"""How unlike the clients and the sectors of a partition are: label distances from the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwater.errors import DataError
from headwater.partition.base import Ints, Partition

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Row:
    """One client or one sector. Without samples it has no distribution, so its distances are None."""

    number: int
    sector: int
    size: int
    classes: int  # how many it holds at least one sample of
    total_variation: float | None  # 0 for the same label shares as the whole, at most 1
    jensen_shannon: float | None  # the distance (root of the divergence, base 2), 0 to 1


@dataclass(frozen=True)
class Summary:
    """Distances by client and by sector, and their means weighted by size, which do not depend on empty clients."""

    clients: tuple[Row, ...]
    sectors: tuple[Row, ...]
    counts: Ints  # (clients, classes)

    def mean(self, tier: str = "clients", distance: str = "total_variation") -> float:
        """The size-weighted mean distance over `clients` or over `sectors`."""
        rows = [row for row in getattr(self, tier) if row.size]
        return float(sum(row.size * getattr(row, distance) for row in rows) / sum(row.size for row in rows))

    @property
    def empty(self) -> int:
        """The number of clients without samples."""
        return sum(row.size == 0 for row in self.clients)


def total_variation(p: Floats, q: Floats) -> float:
    """Half the sum of absolute differences: the share of samples that would have to change label."""
    return float(np.abs(p - q).sum() / 2)


def jensen_shannon(p: Floats, q: Floats) -> float:
    """The root of the Jensen–Shannon divergence in bits; unlike the divergence it obeys the triangle inequality."""
    middle = (p + q) / 2
    return math.sqrt(max(0.0, (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2))


def summarise(partition: Partition, labels: Ints, classes: int) -> Summary:
    """The label distances of every client and every sector from all samples of the partition together; of a large
    population, of the first clients from their samples together."""
    counts = partition.counts(labels, classes, partition.shown)
    whole = counts.sum(axis=0)
    if not whole.sum():
        raise DataError("the partition holds no samples at all, so there are no label shares to compare")
    places = np.asarray(partition.sectors[: partition.shown])
    clients = tuple(_row(client, sector, counts[client], whole) for client, sector in enumerate(places.tolist()))
    sectors = tuple(
        _row(sector, sector, counts[places == sector].sum(axis=0), whole) for sector in np.unique(places).tolist()
    )
    return Summary(clients, sectors, counts)


def _row(number: int, sector: int, counts: Ints, whole: Ints) -> Row:
    size = int(counts.sum())
    if not size:
        return Row(number, sector, 0, 0, None, None)
    p, q = counts / size, whole / whole.sum()
    return Row(number, sector, size, int(np.count_nonzero(counts)), total_variation(p, q), jensen_shannon(p, q))


def _relative_entropy(p: Floats, q: Floats) -> float:
    held = p > 0
    return float((p[held] * np.log2(p[held] / q[held])).sum())
