"""The partition of a run: the configured scheme applied to the clients' rows, and sectors for the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater.core.rng import stream
from headwater.core.sectors import assign
from headwater.partition import PARTITIONS
from headwater.partition.base import Partitioner
from headwater.partition.natural import Natural
from headwater.partition.partition import Ints, LazyIndices, Partition

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.data.split import Split

# Keys of [data] that decide which rows are left to the clients.
MADE_WITH = ("name", "fraction", "validation", "reference", "reference_size")


def scheme_of(config: Config) -> Partitioner:
    """The scheme that a configuration chooses, with its options."""
    scheme: Partitioner = PARTITIONS.load(config.partition.scheme)(**config.partition.options)
    return scheme


def carving_seed(config: Config) -> int:
    """The seed that cuts the public parts out of the data: the scheme's if it has one, else the run's."""
    seed = scheme_of(config).carving_seed
    return config.seed if seed is None else seed


def made_with(config: Config) -> dict[str, Any]:
    """The settings that decide which rows are left to the clients, recorded in partition.json."""
    of_data = {f"data.{key}": getattr(config.data, key) for key in MADE_WITH}
    return {"seed": carving_seed(config)} | of_data


def divide(config: Config, split: Split) -> Partition:
    """Which client holds which rows of `split.train`, and which sector it belongs to.

    Data that is already split is never split again: its own clients are used unless the scheme has a fixed split.

    Args:
        config: with the scheme, its options and the seed.
        split: the data of the run.
    """
    labels, part, scheme = split.train.y.numpy(), config.partition, scheme_of(config)
    if split.owners is not None and not scheme.fixed:
        scheme = Natural()
    if scheme.fixed:
        fixed = scheme.fixed_split(labels, split.owners)
        sectors = fixed.sectors
        if sectors is None:
            few = min(part.sectors, len(fixed.indices))
            counts = _counts(labels, fixed.indices, split.classes)
            sectors = assign(part.assign, counts, few, stream(config.seed, "sectors"))
        return Partition(fixed.indices, sectors, fixed.client_names, fixed.sector_names)
    if scheme.by_sector:  # samples depend on sectors, so sectors cannot depend on samples
        alike = np.ones((part.clients, 1), dtype=np.int64)
        sectors = assign(part.assign, alike, part.sectors, stream(config.seed, "sectors"))
        return Partition(tuple(scheme.split_tree(labels, sectors, stream(config.seed, "partition"))), sectors)
    indices = scheme.split(labels, part.clients, stream(config.seed, "partition"))
    if isinstance(indices, LazyIndices) and part.assign != "balanced":  # sizes are enough, and need no draws
        counts = indices.lengths[:, None]
    else:
        counts = _counts(labels, indices, split.classes)
    return Partition(indices, assign(part.assign, counts, part.sectors, stream(config.seed, "sectors")))


def resolved_partition(config: Config, partition: Partition, split: Split) -> Config:
    """The configuration with the clients, sectors and scheme that were really used.

    Args:
        config: as the user wrote it.
        partition: what `divide` returned.
        split: the data of the run.
    """
    part, scheme = config.partition, scheme_of(config)
    used: dict[str, Any] = {"clients": partition.clients, "sectors": max(partition.sectors) + 1}
    natural = split.owners is not None and not scheme.fixed
    used |= {"scheme": Natural.INFO.name if natural else part.scheme} | scheme.resolved(partition)
    if all(getattr(part, key) == value for key, value in used.items()):
        return config
    if not isinstance(part.assign, str) and len(part.assign) != partition.clients:
        used["assign"] = "random"  # the data decides the sectors
    return config.merged({"partition": used})


def _counts(labels: Ints, indices: Sequence[Ints], classes: int) -> Ints:
    return np.stack([np.bincount(labels[client], minlength=classes) for client in indices])
