"""The partition of a run: the configured scheme applied to the clients' rows, and sectors for the clients.

A client may keep some of its rows for a test of its own; `OwnRows` computes both kinds of rows when they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headwater.core.lazy_clients import number_of
from headwater.core.rng import stream
from headwater.core.sectors import assign
from headwater.partition import PARTITIONS
from headwater.partition.base import Ints, Partitioner, whole
from headwater.partition.natural import Natural
from headwater.partition.partition import LazyIndices, Partition

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.data.split import Split

ClientRows = Mapping[str, Ints]
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


def overridden(config: Config, partition: Partition, split: Split) -> tuple[str, ...]:
    """Say which number of clients was asked for, if the data has its own clients; empty if it was left open.

    Args:
        config: as the user wrote it.
        partition: what `divide` returned.
        split: the data of the run.
    """
    part = config.partition
    untouched = part.clients in (partition.clients, type(part).model_fields["clients"].default)
    if split.owners is None or scheme_of(config).fixed or untouched:
        return ()
    return (
        f"partition.clients = {part.clients} has no effect, since the data names the client of each row: there are "
        f"{partition.clients}; remove it, or leave out data.client to split the rows anew",
    )


def _counts(labels: Ints, indices: Sequence[Ints], classes: int) -> Ints:
    return np.stack([np.bincount(labels[client], minlength=classes) for client in indices])


def kept(length: int, share: float) -> int:
    """How many of `length` rows a client keeps for its own test. At least one is left to train on.

    Args:
        length: the client's number of rows.
        share: from 0 up to 1.
    """
    return min(round(share * length), max(0, length - 1))


def training_sizes(lengths: Ints, share: float) -> Ints:
    """How many rows each client trains on, if it keeps this share of `lengths` for its own test."""
    if not share:
        return lengths
    kinds, places = np.unique(lengths, return_inverse=True)
    return np.array([length - kept(length, share) for length in kinds.tolist()], dtype=np.int64)[places]


def local_rows(config: Config, partition: Partition, split: Split) -> tuple[ClientRows, ClientRows, float]:
    """Rows that each client trains on, rows of its own test in `split.local_tests`, and the share that it keeps for it.

    Args:
        config: with the share, its source and the seed.
        partition: which client holds which rows.
        split: the data of the run.
    """
    share, seed = config.partition.local_test, config.seed
    if config.partition.local_test_source == "train":
        rows, tests = (OwnRows(partition.indices, share, seed, test=test) for test in (False, True))
        return rows, tests, share
    own = OwnRows(partition.indices, 0.0, seed, test=False)
    return own, DrawnTests(own, split.train.y.numpy(), split.test.y.numpy(), share, seed), 0.0


class OwnRows(ClientRows):
    """Mapping from a client's name to its rows of the training set.

    Args:
        indices: all rows by client.
        share: kept for the client's own test.
        seed: of the draw of test rows.
        test: whether these are the test rows instead of those to train on.
    """

    def __init__(self, indices: Sequence[Ints], share: float, seed: int, *, test: bool) -> None:
        self._indices, self._share, self._seed, self._test = indices, share, seed, test

    def __getitem__(self, client: str) -> Ints:
        number = number_of(client, len(self._indices))
        if number is None:
            raise KeyError(client)
        indices = self._indices[number]
        test_size = kept(len(indices), self._share) if self._share else 0
        if not test_size:  # nothing is drawn
            return indices[:0].copy() if self._test else indices.copy()
        order = stream(self._seed, "local_test", number).permutation(len(indices))
        return np.sort(indices[order[:test_size] if self._test else order[test_size:]])

    def __contains__(self, client: object) -> bool:
        return number_of(client, len(self._indices)) is not None

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[str]:
        return (f"c{number}" for number in range(len(self._indices)))


class DrawnTests(ClientRows):
    """Mapping from a client's name to rows of the common test set whose labels have the proportions of its own rows.

    Clients draw independently of one another, so two of them may have the same row. Where the test set has too few rows
    of a class, all of them are used.

    Args:
        own: the rows that each client trains on.
        labels: of the training set.
        tested: labels of the test set.
        share: rows of a client's test, as a share of its own rows.
        seed: of the draws.
    """

    def __init__(self, own: OwnRows, labels: Ints, tested: Ints, share: float, seed: int) -> None:
        self._own, self._labels, self._tested, self._share, self._seed = own, labels, tested, share, seed

    def __getitem__(self, client: str) -> Ints:
        labels = self._labels[self._own[client]]
        classes, counts = np.unique(labels, return_counts=True)
        size = kept(len(labels), self._share)
        rng = stream(self._seed, "local_test", number_of(client, len(self._own)) or 0)
        drawn = [np.zeros(0, dtype=np.int64)]
        for label, wanted in zip(classes, whole(counts / max(1, len(labels)), size), strict=True):
            drawn.append(rng.permutation(np.flatnonzero(self._tested == label))[:wanted])
        return np.sort(np.concatenate(drawn))

    def __contains__(self, client: object) -> bool:
        return client in self._own

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)
