"""Preparation of inputs by statistics over all clients, without moving a row.

Before round 1 each client measures its own rows, the server combines these reports, and the result is sent back. The
bytes of this exchange are in the ledger as setup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from headwater.data.split import Split

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = tuple[Array, ...]
WORDS = "words"


class Preparation(Protocol):
    """An exchange before round 1: `measure` at each client, `settle` at the server, `apply` wherever rows are used."""

    name: str

    def measure(self, x: Tensor) -> Arrays:
        """A client's report about its training rows.

        Args:
            x: the inputs of one client.
        """
        ...

    def settle(self, reports: Sequence[Arrays]) -> Arrays:
        """Combine the reports of all clients; the result is sent to everybody.

        Args:
            reports: what `measure` returned, by client.
        """
        ...

    def apply(self, x: Tensor, settled: Arrays) -> Tensor:
        """Inputs as the model takes them.

        Args:
            x: inputs as they were read.
            settled: what `settle` returned.
        """
        ...


@dataclass(frozen=True)
class Exchange:
    """Record of a finished exchange.

    Args:
        name: of the preparation.
        up: bytes of each client's report.
        down: bytes of the result, which each client receives.
        settled: the result.
        way: the preparation itself.
    """

    name: str
    up: Mapping[str, int]
    down: int
    settled: Arrays
    way: Preparation | None = None


class Standardise:
    """Flat features with mean 0 and deviation 1 over all clients, from counts, sums and squares by column.

    A missing value (NaN) is left out of these and becomes the mean. A constant column becomes 0. Squares are taken
    around a client's own mean, so that large values keep their digits.
    """

    name = "standardise"

    def measure(self, x: Tensor) -> Arrays:
        values = x.numpy().astype(np.float64)
        known = ~np.isnan(values)
        filled = np.where(known, values, 0.0)
        count = known.sum(axis=0).astype(np.float64)
        mean = filled.sum(axis=0) / np.maximum(count, 1)
        around = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
        return count, filled.sum(axis=0), around

    def settle(self, reports: Sequence[Arrays]) -> Arrays:
        count = sum((part[0] for part in reports[1:]), start=reports[0][0].copy())
        total = sum((part[1] for part in reports[1:]), start=reports[0][1].copy())
        mean = total / np.maximum(count, 1)
        # Squares around each client's mean are shifted to the common mean: no difference of two large numbers.
        spread = np.zeros_like(mean)
        for n, s, around in reports:
            spread += around + n * (s / np.maximum(n, 1) - mean) ** 2
        deviation = np.sqrt(spread / np.maximum(count, 1))
        flat = deviation <= 1e-12 * np.maximum(1.0, np.abs(mean))
        return mean, np.where(flat, 1.0, deviation)

    def apply(self, x: Tensor, settled: Arrays) -> Tensor:
        mean, deviation = settled
        values = (x.numpy().astype(np.float64) - mean) / deviation
        return torch.from_numpy(np.nan_to_num(values, nan=0.0).astype(np.float32))


def prepared(
    split: Split, rows: Mapping[str, Array], clients: Sequence[str], way: Preparation
) -> tuple[Split, Exchange]:
    """Run the exchange over these clients and apply its result to all parts of the split.

    Args:
        split: with inputs as they were read.
        rows: rows of `split.train` by client.
        clients: those that take part.
        way: the preparation.

    Returns:
        The split with prepared inputs, and the record of the exchange.
    """
    reports = {client: way.measure(split.train.x[torch.from_numpy(rows[client])]) for client in clients}
    settled = way.settle(list(reports.values()))
    train, validation, test = (
        replace(part, x=way.apply(part.x, settled)) for part in (split.train, split.validation, split.test)
    )
    after = replace(split, train=train, validation=validation, test=test, reference=way.apply(split.reference, settled))
    after = replace(after, shape=tuple(train.x.shape[1:]))
    up = {client: sum(array.nbytes for array in arrays) for client, arrays in reports.items()}
    return after, Exchange(way.name, up, sum(array.nbytes for array in settled), settled, way)


def pack(words: Sequence[str]) -> Array:
    """Encode words as bytes, for an exchange."""
    return np.frombuffer("\0".join(words).encode(), dtype=np.uint8).copy()


def unpack(packed: Array) -> list[str]:
    """Inverse of `pack`."""
    text = packed.tobytes().decode()
    return text.split("\0") if text else []


def to_json(settled: Arrays) -> list[dict[str, Any]]:
    """The result of an exchange for a JSON file: words as words, numbers with all their digits."""
    return [_as_json(array) for array in settled]


def from_json(content: Sequence[Mapping[str, Any]]) -> Arrays:
    """Inverse of `to_json`, exact to the bit."""
    return tuple(
        pack(values) if kind == WORDS else np.array(values, dtype=np.dtype(kind))
        for one in content
        for kind, values in one.items()
    )


def _as_json(array: Array) -> dict[str, Any]:
    if array.dtype == np.uint8 and array.ndim == 1:
        try:
            words = unpack(array)
        except UnicodeDecodeError:
            words = None  # bytes that encode no words
        if words is not None and np.array_equal(pack(words), array):
            return {WORDS: words}
    return {array.dtype.name if array.dtype.kind in "biuf" else array.dtype.str: array.tolist()}
