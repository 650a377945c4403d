"""Lazy collections over all clients: names, sectors and sizes are computed from a few arrays when they are used.

A tree of a million clients then takes a few arrays; a name such as `c17` is created on demand.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast, overload

import numpy as np

Ints = np.ndarray[Any, np.dtype[Any]]
Value = TypeVar("Value")
KNOWN = 1 << 14  # names whose numbers are cached: the clients of a round are looked up many times
CHUNK = 4096  # numbers that are converted to objects at a time when iterating over all clients


def number_of(name: object, clients: int) -> int | None:
    """17 for "c17"; None if this is not the name of one of `clients` clients."""
    if not isinstance(name, str) or name[:1] != "c":
        return None
    try:
        number = int(name[1:])
    except ValueError:
        return None
    return number if 0 <= number < clients and name == f"c{number}" else None


@dataclass(frozen=True, eq=False)
class Index:
    """Size, sector and order of each client, by its number."""

    sizes: Ints
    sector: Ints  # position of its sector among the sectors of the tree
    order: Ints  # client numbers in tree order
    rank: Ints  # position of each client in that order
    _known: dict[object, int] = field(default_factory=dict, repr=False)  # cache of numbers by name

    @staticmethod
    def of(sizes: Sequence[int] | Ints, sector: Ints) -> Index:
        """Order clients by sector, then by size (largest first), then by number."""
        lengths = np.array(sizes, dtype=np.int64)
        order = np.lexsort((-lengths, sector)).astype(np.int32)  # stable: ties stay in the order of numbers
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return Index(lengths, sector, order, rank)

    def number(self, name: object) -> int | None:
        """Number of a client; None if there is no client of this name."""
        number = self._known.get(name)
        if number is None and (number := number_of(name, len(self.sizes))) is not None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[name] = number
        return number


class Names(Sequence[str]):
    """Lazy sequence of client names in tree order: all clients or one sector, optionally only those with data."""

    def __init__(self, index: Index, numbers: Ints, sector: int | None = None, holding: bool = False) -> None:
        self._index, self.numbers, self._sector, self._holding = index, numbers, sector, holding

    def number(self, name: object) -> int | None:
        """Number of the client if it is in this sequence."""
        number = self._index.number(name)
        if number is None or (self._holding and not self._index.sizes[number]):
            return None
        return number if self._sector is None or self._index.sector[number] == self._sector else None

    def __contains__(self, name: object) -> bool:
        return self.number(name) is not None

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        if isinstance(at, slice):
            return tuple(f"c{number}" for number in self.numbers[at].tolist())
        return f"c{self.numbers[at]}"

    def __iter__(self) -> Iterator[str]:
        for number in _plain(self.numbers):
            yield f"c{number}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Names):
            return np.array_equal(self.numbers, other.numbers)
        if not isinstance(other, tuple | list):
            return NotImplemented
        return len(other) == len(self) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list, so that a million names are never hashed by accident

    def __repr__(self) -> str:
        return f"({', '.join(self[:5])}{', …' if len(self) > 5 else ''}: {len(self)} clients)"


class Column(Mapping[str, Value], Generic[Value]):
    """Lazy mapping of client names to one value each, in tree order.

    Args:
        names: the clients.
        column: an integer per client, by client number.
        words: if given, the mapping's values are `words[number]`.
    """

    def __init__(self, names: Names, column: Ints, words: Sequence[Value] | None = None) -> None:
        self.names, self._column, self._words = names, column, words
        self._known: dict[str, Value] = {}  # cache of values by name

    def __getitem__(self, name: str) -> Value:
        try:
            return self._known[name]
        except KeyError:
            number = self.names.number(name)
        if number is None:
            raise KeyError(name)
        if len(self._known) >= KNOWN:
            self._known.clear()
        value = self._known[name] = self._value(self._column[number].item())
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._known or self.names.number(name) is not None

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def values(self) -> ValuesView[Value]:
        return _Values(self)

    def items(self) -> ItemsView[str, Value]:
        return _Items(self)

    def in_order(self) -> Iterator[Value]:
        """Values in tree order, without creating the names."""
        return (self._value(number) for number in _plain(self._column, self.names.numbers))

    def _value(self, number: int) -> Value:
        return cast(Value, number) if self._words is None else self._words[number]


class _Values(ValuesView[Value]):
    def __init__(self, column: Column[Value]) -> None:
        super().__init__(column)
        self._column = column

    def __iter__(self) -> Iterator[Value]:
        return self._column.in_order()


class _Items(ItemsView[str, Value]):
    def __init__(self, column: Column[Value]) -> None:
        super().__init__(column)
        self._column = column

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return zip(self._column, self._column.in_order(), strict=True)


class Joined(Mapping[str, Value]):
    """Union of two mappings without common keys, in this order."""

    def __init__(self, first: Mapping[str, Value], second: Mapping[str, Value]) -> None:
        self._first, self._second = first, second

    def __getitem__(self, key: str) -> Value:
        return self._first[key] if key in self._first else self._second[key]

    def __contains__(self, key: object) -> bool:
        return key in self._first or key in self._second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __iter__(self) -> Iterator[str]:
        yield from self._first
        yield from self._second


def _plain(numbers: Ints, at: Ints | None = None) -> Iterator[int]:
    """Numbers as Python integers, converted in chunks; `at` selects some of them."""
    length = len(numbers if at is None else at)
    for start in range(0, length, CHUNK):
        some = slice(start, start + CHUNK)
        yield from (numbers[some] if at is None else numbers[at[some]]).tolist()
