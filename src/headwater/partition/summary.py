"""Label distances of the clients and sectors of a partition from the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwater.errors import DataError
from headwater.partition.base import Ints
from headwater.partition.partition import Partition

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class LabelDistance:
    """The label distance of one client or one sector from the whole.

    Args:
        number: of the client or sector.
        sector: of the client, or the sector itself.
        size: number of samples.
        classes: how many classes have at least one sample.
        total_variation: 0 for the label shares of the whole, at most 1; None without samples.
        jensen_shannon: distance (root of the divergence, base 2), 0 to 1; None without samples.
    """

    number: int
    sector: int
    size: int
    classes: int
    total_variation: float | None
    jensen_shannon: float | None


@dataclass(frozen=True)
class PartitionSummary:
    """Label distances by client and by sector.

    Args:
        clients: one row per client.
        sectors: one row per sector.
        counts: samples per client and class.
    """

    clients: tuple[LabelDistance, ...]
    sectors: tuple[LabelDistance, ...]
    counts: Ints

    def mean(self, tier: str = "clients", distance: str = "total_variation") -> float:
        """The mean distance, weighted by size.

        Args:
            tier: "clients" or "sectors".
            distance: "total_variation" or "jensen_shannon".
        """
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
    """The root of the Jensen–Shannon divergence in bits, which unlike the divergence is a metric."""
    middle = (p + q) / 2
    return math.sqrt(max(0.0, (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2))


def summarise(partition: Partition, labels: Ints, classes: int) -> PartitionSummary:
    """The label distances of all clients and sectors from the whole; of a lazy partition, of its first clients.

    Args:
        partition: of the training set.
        labels: of the training set.
        classes: how many there are.
    """
    counts = partition.counts(labels, classes, partition.shown)
    return PartitionSummary(*distances(counts, partition.sectors[: partition.shown]), counts)


def distances(counts: Ints, sectors: Sequence[int]) -> tuple[tuple[LabelDistance, ...], tuple[LabelDistance, ...]]:
    """The label distances of all clients and sectors from the whole.

    Args:
        counts: samples by client and class.
        sectors: of the clients.
    """
    whole = counts.sum(axis=0)
    if not whole.sum():
        raise DataError("the partition holds no samples at all, so there are no label shares to compare")
    places = np.asarray(sectors)
    clients = tuple(_row(client, sector, counts[client], whole) for client, sector in enumerate(places.tolist()))
    return clients, tuple(
        _row(sector, sector, counts[places == sector].sum(axis=0), whole) for sector in np.unique(places).tolist()
    )


def _row(number: int, sector: int, counts: Ints, whole: Ints) -> LabelDistance:
    size = int(counts.sum())
    if not size:
        return LabelDistance(number, sector, 0, 0, None, None)
    p, q = counts / size, whole / whole.sum()
    return LabelDistance(
        number, sector, size, int(np.count_nonzero(counts)), total_variation(p, q), jensen_shannon(p, q)
    )


def _relative_entropy(p: Floats, q: Floats) -> float:
    present = p > 0
    return float((p[present] * np.log2(p[present] / q[present])).sum())
