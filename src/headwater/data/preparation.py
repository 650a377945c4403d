"""What has to be known of all clients' rows before any of them can be used, and how it is found without moving a row.

Each client measures its own rows, what it tells is added up at the server, and the outcome is sent back. These moves
are part of the setup and stand in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from headwater.data.base import Split

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = tuple[Array, ...]
WORDS = "words"


class Preparation(Protocol):
    """Three halves of one exchange: at a client, at the server, and wherever rows are used."""

    name: str

    def measure(self, x: Tensor) -> Arrays:
        """What a client tells about its training rows."""
        ...

    def settle(self, told: Sequence[Arrays]) -> Arrays:
        """What the server makes of it and sends to everybody."""
        ...

    def apply(self, x: Tensor, settled: Arrays) -> Tensor:
        """Rows as the model takes them."""
        ...


@dataclass(frozen=True)
class Exchange:
    """What a preparation moved: bytes by client, the same bytes back to each, and the outcome."""

    name: str
    up: Mapping[str, int]
    down: int
    settled: Arrays
    way: Preparation | None = None  # whose exchange it was

    def described(self) -> dict[str, Any]:
        """The outcome, for whoever uses the model later."""
        return {"name": self.name, "settled": [array.tolist() for array in self.settled]}


class Standardise:
    """Flat features with mean 0 and deviation 1 over all clients, from counts, sums and squares by column.

    A missing value (NaN) counts in none of them and becomes the mean. A column that never varies becomes 0. Squares
    are those of distances from a client's own mean, so that large values keep their digits. `columns` are the ones to
    treat; the others stay as they are.
    """

    name = "standardise"

    def __init__(self, columns: Sequence[int] | None = None) -> None:
        self.columns = None if columns is None else np.asarray(columns, dtype=np.int64)

    def measure(self, x: Tensor) -> Arrays:
        values = self._values(x)
        known = ~np.isnan(values)
        filled = np.where(known, values, 0.0)
        count = known.sum(axis=0).astype(np.float64)
        mean = filled.sum(axis=0) / np.maximum(count, 1)
        around = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
        return count, filled.sum(axis=0), around

    def settle(self, told: Sequence[Arrays]) -> Arrays:
        count = sum((part[0] for part in told[1:]), start=told[0][0].copy())
        total = sum((part[1] for part in told[1:]), start=told[0][1].copy())
        mean = total / np.maximum(count, 1)
        # Around each client's own mean, moved to the common one: no difference of two large numbers is taken.
        spread = np.zeros_like(mean)
        for n, s, around in told:
            spread += around + n * (s / np.maximum(n, 1) - mean) ** 2
        deviation = np.sqrt(spread / np.maximum(count, 1))
        flat = deviation <= 1e-12 * np.maximum(1.0, np.abs(mean))
        return mean, np.where(flat, 1.0, deviation)

    def apply(self, x: Tensor, settled: Arrays) -> Tensor:
        mean, deviation = settled
        values = (self._values(x) - mean) / deviation
        scaled = torch.from_numpy(np.nan_to_num(values, nan=0.0).astype(np.float32))
        if self.columns is None:
            return scaled
        whole = x.clone()
        whole[:, torch.from_numpy(self.columns)] = scaled
        return whole

    def _values(self, x: Tensor) -> Array:
        values = x.numpy().astype(np.float64)
        return values if self.columns is None else values[:, self.columns]


def prepared(
    split: Split, rows: Mapping[str, Array], clients: Sequence[str], way: Preparation
) -> tuple[Split, Exchange]:
    """The exchange over these clients, one after another, and the split as it is after it."""
    told = {client: way.measure(split.train.x[torch.from_numpy(rows[client])]) for client in clients}
    settled = way.settle(list(told.values()))
    train, validation, test = (
        replace(part, x=way.apply(part.x, settled)) for part in (split.train, split.validation, split.test)
    )
    after = replace(split, train=train, validation=validation, test=test, reference=way.apply(split.reference, settled))
    after = replace(after, shape=tuple(train.x.shape[1:]))
    up = {client: sum(array.nbytes for array in arrays) for client, arrays in told.items()}
    return after, Exchange(way.name, up, sum(array.nbytes for array in settled), settled, way)


def pack(words: Sequence[str]) -> Array:
    """Words as bytes, which is how they travel."""
    return np.frombuffer("\0".join(words).encode(), dtype=np.uint8).copy()


def unpack(packed: Array) -> list[str]:
    text = packed.tobytes().decode()
    return text.split("\0") if text else []


def tell(settled: Arrays) -> list[dict[str, Any]]:
    """What was settled, for a file that people read too: words as words, numbers with all their digits."""
    return [_told(array) for array in settled]


def untell(told: Sequence[Mapping[str, Any]]) -> Arrays:
    """The same arrays again, to the bit."""
    return tuple(
        pack(values) if kind == WORDS else np.array(values, dtype=np.dtype(kind))
        for one in told
        for kind, values in one.items()
    )


def _told(array: Array) -> dict[str, Any]:
    if array.dtype == np.uint8 and array.ndim == 1:
        try:
            words = unpack(array)
        except UnicodeDecodeError:
            words = None  # bytes that are no words
        if words is not None and np.array_equal(pack(words), array):
            return {WORDS: words}
    return {array.dtype.name if array.dtype.kind in "biuf" else array.dtype.str: array.tolist()}
