"""Data that is already split: who holds each row, and which sector each of them belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headwater.errors import DataError

Ints = np.ndarray[Any, np.dtype[np.int64]]
Names = Sequence[Any] | np.ndarray[Any, Any]  # one a row: words or numbers


@dataclass(frozen=True, eq=False)
class Owners:
    """Clients and sectors have numbers here, and the names that the data has for them."""

    rows: Ints  # the client of each training row
    clients: tuple[str, ...]
    sectors: tuple[int, ...] | None = None  # of each client; none if the data does not say
    sector_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, client: Names, sector: Names | None, samples: int) -> Owners:
        """From a name a row. A client's rows must all be in one sector."""
        for what, given in (("client", client), ("sector", sector)):
            if given is not None and len(given) != samples:
                raise DataError(f"{what} has {len(given)} entries for {samples} training samples; give one for each")
        names, rows = _numbered(client)
        if sector is None:
            return cls(rows, names)
        places, of_row = _numbered(sector)
        first = np.full(len(names), -1, dtype=np.int64)
        first[rows[::-1]] = of_row[::-1]
        astray = np.flatnonzero(of_row != first[rows])
        if len(astray):
            row = int(astray[0])
            raise DataError(
                f"client {names[rows[row]]!r} has rows in sector {places[first[rows[row]]]!r} and in "
                f"{places[of_row[row]]!r}; each client belongs to one sector, so name them apart"
            )
        return cls(rows, names, tuple(first.tolist()), places)

    def take(self, at: Ints) -> Owners:
        """The owners of these rows alone. Clients that are left with none stay."""
        return replace(self, rows=self.rows[at])

    def indices(self) -> tuple[Ints, ...]:
        """The rows of each client."""
        order = np.argsort(self.rows, kind="stable")
        ends = np.cumsum(np.bincount(self.rows, minlength=len(self.clients)))[:-1]
        return tuple(np.split(order.astype(np.int64), ends))


def _numbered(given: Names) -> tuple[tuple[str, ...], Ints]:
    """The different names, site 2 before site 10, and the number of each entry's name."""
    words = np.array([_word(value) for value in given], dtype=object)
    found = sorted(set(words.tolist()), key=natural)
    numbers = {name: number for number, name in enumerate(found)}
    return tuple(found), np.array([numbers[word] for word in words], dtype=np.int64)


def _word(value: Any) -> str:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of numbers with a gap is read as floats
    return str(value)


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """The order that people expect of names with numbers in them; the name itself decides between 1 and 01."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part], name
