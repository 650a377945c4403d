"""What alpha does at its two ends, in every scheme that has it for labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headwater.core.rng import stream
from headwater.partition import PARTITIONS
from headwater.partition.partition import Partition
from headwater.partition.summary import PartitionSummary, summarise

LABELS = np.tile(np.arange(20), 300)
SCHEMES = ("dirichlet", "dirichlet-balanced", "client-prior", "blocked", "two-level", "drawn")
OPTIONS: dict[str, dict[str, Any]] = {"dirichlet-balanced": {"min_size": 0}, "drawn": {"size": 100}}


def found(name: str, alpha: float, seed: int, clients: int = 20) -> PartitionSummary:
    scheme = PARTITIONS.load(name)(alpha=alpha, **OPTIONS.get(name, {}))
    return summarise(Partition(scheme.split(LABELS, clients, stream(seed)), (0,) * clients), LABELS, 20)


def chance(size: float) -> float:
    """The total variation that drawing so many samples of 20 equal classes leaves on average: half the sum of the mean
    absolute deviations of 20 shares, each √(2/π) standard deviations."""
    return 10 * np.sqrt(2 / np.pi) * np.sqrt(0.05 * 0.95 / size)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_huge_alpha_leaves_no_more_than_chance(name: str) -> None:
    """Schemes that cut classes into equal shares are nearer still; those that draw samples are as far as draws are."""
    distances = [found(name, 1e6, seed).mean() for seed in range(3)]
    assert np.mean(distances) < 1.1 * chance(100 if name == "drawn" else 300)


@pytest.mark.parametrize("name", ["client-prior", "two-level", "drawn"])
def test_a_minute_alpha_leaves_a_client_one_class(name: str) -> None:
    """Schemes with a prior for each client. About 30 of 600 clients want each class, give or take 5: where more do, the
    last of what they hold is of classes that fewer wanted, about 2 of 30 samples over all."""
    counts = found(name, 1e-3, 0, clients=600).counts
    largest = counts.max(axis=1) / counts.sum(axis=1)
    assert np.median(largest) == 1
    assert largest.mean() > 0.88


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-balanced", "blocked"])
def test_a_minute_alpha_leaves_a_class_one_client(name: str) -> None:
    """Schemes that share out each class; in blocks of ten clients, one of each ten."""
    counts = found(name, 1e-3, 0).counts
    for block in counts.reshape(2, 10, 20) if name == "blocked" else counts[None]:
        assert np.mean(block.max(axis=0) / block.sum(axis=0)) > 0.95


@pytest.mark.parametrize("name", SCHEMES)
def test_distance_falls_as_alpha_grows(name: str) -> None:
    by_alpha = [np.mean([found(name, alpha, seed).mean() for seed in range(3)]) for alpha in (0.02, 0.3, 3.0, 100.0)]
    assert by_alpha == sorted(by_alpha, reverse=True)
