"""`Partitioner`, the base class of all partition schemes, and helpers for schemes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from headwater.errors import ConfigError, DataError
from headwater.partition.partition import Ints, LazyIndices, Partition
from headwater.registry import Info

if TYPE_CHECKING:
    from headwater.data.arrays import Owners


@dataclass(frozen=True)
class FixedSplit:
    """A split that is not drawn: by the data itself or by a file.

    Args:
        indices: sample numbers by client.
        sectors: the sector of each client; None if they are still to be assigned.
        client_names: the data's own names of the clients, if it has some.
        sector_names: likewise of the sectors.
    """

    indices: Sequence[Ints]
    sectors: tuple[int, ...] | None = None
    client_names: tuple[str, ...] = ()
    sector_names: tuple[str, ...] = ()


class Partitioner(ABC):
    """Base class of partition schemes: which client holds which training samples.

    A scheme is a frozen dataclass whose fields are its options, the keys beside `partition.scheme`. Only `split` must
    be defined; every other method has a default. A scheme that cannot split some data as asked raises a `ConfigError`
    whose message says what to change. In a file of the package, `INFO = Info("name", "summary")` lists it; any other is
    chosen by `partition.scheme = "package.module:Name"`.

    Example:
        >>> @dataclass(frozen=True)
        ... class Stripes(Partitioner):
        ...     width: int = 10  # samples per stripe: partition.width
        ...
        ...     def split(self, labels, clients, rng):
        ...         labels = check(labels, clients)
        ...         stripe = np.arange(len(labels)) // self.width
        ...         return [np.flatnonzero(stripe % clients == client) for client in range(clients)]
        >>> parts = Stripes(width=2).split(np.zeros(6, dtype=np.int64), 2, np.random.default_rng(0))
        >>> [part.tolist() for part in parts]
        [[0, 1, 4, 5], [2, 3]]
    """

    INFO: ClassVar[Info]
    SHARED: ClassVar[bool] = False  # clients may hold the same sample; `split` returns `LazyIndices` then
    by_sector: ClassVar[bool] = False  # defines `split_tree`: sectors are assigned before samples
    fixed: ClassVar[bool] = False  # defines `fixed_split`: clients follow from the data or a file, not from the seed

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.by_sector = cls.split_tree is not Partitioner.split_tree
        cls.fixed = cls.fixed_split is not Partitioner.fixed_split

    @abstractmethod
    def split(self, labels: Ints, clients: int, rng: np.random.Generator) -> Sequence[Ints]:
        """Distribute the samples.

        Args:
            labels: the class of each training sample.
            clients: how many there are.
            rng: the only source of randomness, so that a seed always gives the same split.

        Returns:
            Sorted sample numbers by client, as int64. No sample may be at two clients unless the scheme is `SHARED`.
            With default options every sample is used; an option may leave some out.
        """

    def split_tree(self, labels: Ints, sector_of: tuple[int, ...], rng: np.random.Generator) -> Sequence[Ints]:
        """As `split`, for a scheme that looks at sectors. Clients are assigned to sectors before it is called.

        Args:
            labels: the class of each training sample.
            sector_of: the sector of each client.
            rng: as for `split`.
        """
        return self.split(labels, len(sector_of), rng)

    def fixed_split(self, labels: Ints, owners: Owners | None) -> FixedSplit:
        """The split of a scheme that draws nothing. Such a scheme also decides the number of clients.

        Args:
            labels: the class of each training sample.
            owners: which client holds each sample, if the data was already split.
        """
        raise NotImplementedError

    def population(self, labels: Ints, clients: int, seed: int) -> LazyIndices:
        """The split of this seed, for a `SHARED` scheme: `Partition.from_manifest` draws it again by this method.

        Args:
            labels: the class of each training sample.
            clients: how many there are.
            seed: which the rule of the split names.
        """
        raise NotImplementedError

    @property
    def carving_seed(self) -> int | None:
        """The seed by which the public parts must be cut out of the data; None for the run's own seed."""
        return None

    def resolved(self, partition: Partition) -> dict[str, Any]:
        """Options to record in the run's resolved configuration, so that it repeats exactly this partition.

        Args:
            partition: the one that was made.
        """
        return {}


def as_partitioner(kind: Any, name: str = "") -> type[Partitioner]:
    """A scheme's class as generic code uses it: with a default for every hook.

    Args:
        kind: a subclass of `Partitioner`, or any class with a method `split(labels, clients, rng)`.
        name: under which it was chosen, for messages.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(kind, type) and issubclass(kind, Partitioner):
        return kind
    if not isinstance(kind, type) or not inspect.isfunction(getattr(kind, "split", None)):
        raise ConfigError(
            f"{name or kind!r} is not a partition scheme; it must be a class with a method split(labels, clients, "
            "rng), best a subclass of headwater.partition.base.Partitioner"
        )
    own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, Partitioner), own)


def check(labels: Ints, clients: int) -> Ints:
    """The labels as int64.

    Args:
        labels: the class of each sample, as whole numbers of any type.
        clients: how many there are.

    Raises:
        DataError: there are no samples, or labels are not whole numbers.
        ConfigError: there are no clients.
    """
    found = np.asarray(labels)
    if found.ndim != 1 or len(found) < 1 or found.dtype.kind not in "iu":
        raise DataError(
            f"a split needs one whole-number label per sample and at least one sample, got shape {found.shape}"
        )
    if clients < 1:
        raise ConfigError(f"partition.clients must be at least 1, got {clients}")
    return found.astype(np.int64)


def gather(parts: Sequence[Sequence[Ints]]) -> list[Ints]:
    """Each client's pieces as one sorted array of sample numbers.

    Args:
        parts: arrays of sample numbers, by client.
    """
    return [np.sort(np.concatenate([np.empty(0, np.int64), *pieces])) for pieces in parts]
