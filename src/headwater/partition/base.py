"""`Partitioner`, the base class of all partition schemes, and helpers for schemes: checks and random shares."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator

from headwater.errors import ConfigError, DataError
from headwater.registry import Info

if TYPE_CHECKING:
    from headwater.data.arrays import Owners
    from headwater.partition.partition import LazyIndices, Partition

Ints = np.ndarray[Any, np.dtype[np.int64]]
Shares = np.ndarray[Any, np.dtype[np.float64]]


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
        raise ConfigError(f"partition scheme {type(self).__name__} draws its split from a seed; it has no fixed one")

    def population(self, labels: Ints, clients: int, seed: int) -> LazyIndices:
        """The split of this seed, for a `SHARED` scheme: `Partition.from_manifest` draws it again by this method.

        Args:
            labels: the class of each training sample.
            clients: how many there are.
            seed: which the rule of the split names.
        """
        raise ConfigError(f"partition scheme {type(self).__name__} lists the samples of its clients; it has no rule")

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
    given = np.asarray(labels)
    if given.ndim != 1 or len(given) < 1 or given.dtype.kind not in "iu":
        raise DataError(
            f"a split needs one whole-number label per sample and at least one sample, got shape {given.shape}"
        )
    if clients < 1:
        raise ConfigError(f"partition.clients must be at least 1, got {clients}")
    return given.astype(np.int64)


def gather(parts: Sequence[Sequence[Ints]]) -> list[Ints]:
    """Each client's pieces as one sorted array of sample numbers.

    Args:
        parts: arrays of sample numbers, by client.
    """
    return [np.sort(np.concatenate([np.empty(0, np.int64), *pieces])) for pieces in parts]


def draw(rng: np.random.Generator, alpha: float, clients: int) -> Shares:
    """Shares of a symmetric Dirichlet distribution, scaled so that rounding down loses no sample.

    Args:
        rng: of the scheme.
        alpha: concentration.
        clients: how many shares.
    """
    share: Shares = rng.dirichlet(np.full(clients, alpha))
    share /= share.sum()
    return share


def whole(share: Shares, total: int) -> Ints:
    """Whole numbers in these proportions that sum to `total`: rounded down, the rest to the largest remainders.

    Args:
        share: proportions whose sum is 1.
        total: the sum of the result.
    """
    exact = share * total
    sizes = np.floor(exact).astype(np.int64)
    rest = total - int(sizes.sum())
    # Rounded, so that remainders that differ by floating-point noise tie; ties go to the lower client number.
    order = np.argsort(-np.round(exact - sizes, 9), kind="stable")
    sizes[order[:rest]] += 1
    return sizes


def check_alpha(alpha: float, key: str = "alpha") -> float:
    """The concentration. Refuses one that is not a finite number above 0."""
    if not alpha > 0 or math.isinf(alpha):
        raise ConfigError(
            f"partition.{key} must be a finite number above 0, got {alpha}; "
            "0.1 makes clients very unlike each other, 100 nearly alike"
        )
    return alpha


Alpha = Annotated[float, AfterValidator(check_alpha)]  # type of the option `alpha` of a scheme


def fill(labels: Ints, sizes: Ints, alpha: float, rng: np.random.Generator) -> list[Ints]:
    """Distribute all samples over parties of these sizes, each with a class prior of its own.

    Args:
        labels: the class of each sample.
        sizes: the number of samples per party; their sum is that of the labels.
        alpha: concentration of the symmetric Dirichlet distribution that priors are drawn from.
        rng: of the scheme.

    Returns:
        Sorted sample numbers by party.
    """
    kinds, counts = np.unique(labels, return_counts=True)
    priors = np.stack([draw(rng, alpha, len(kinds)) for _ in sizes])
    # Samples are taken from the end of each list.
    stock = [rng.permutation(np.flatnonzero(labels == kind)).tolist() for kind in kinds]
    parts: list[list[int]] = [[] for _ in sizes]
    rows = _cumulated(priors, counts > 0)
    for party, chance in zip(_turns(sizes, rng), rng.random(len(labels)).tolist(), strict=True):
        row = rows[party]
        # Drawing among the classes that are left equals drawing again until one of them comes up. A product that is
        # rounded up to the whole sum means the last class with a share.
        kind = bisect_right(row, chance * row[-1])
        kind = kind if kind < len(row) else bisect_left(row, row[-1])
        parts[party].append(stock[kind].pop())
        if not stock[kind]:
            rows = _cumulated(priors, np.array([len(members) > 0 for members in stock]))
    return [np.sort(np.array(part, np.int64)) for part in parts]


def even(total: int, parties: int) -> Ints:
    """`total` in sizes that differ by at most one, the larger ones first.

    Args:
        total: the sum of the sizes.
        parties: how many sizes.
    """
    sizes = np.full(parties, total // parties, np.int64)
    sizes[: total % parties] += 1
    return sizes


def _cumulated(priors: Shares, left: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[list[float]]:
    """Cumulated prior of each party over the classes that are left; uniform where the prior leaves them nothing."""
    open_to = priors * left
    open_to = np.where(open_to.sum(axis=1, keepdims=True) > 0, open_to, left)
    rows: list[list[float]] = np.cumsum(open_to, axis=1).tolist()
    return rows


def _turns(sizes: Ints, rng: np.random.Generator) -> Iterator[int]:
    """The party that gets the next sample: random among those that have room, until all are full."""
    room = sizes.tolist()
    left = sum(room)
    while left:
        for party in rng.integers(len(room), size=max(left, len(room))).tolist():
            if room[party]:
                room[party] -= 1
                left -= 1
                yield party
