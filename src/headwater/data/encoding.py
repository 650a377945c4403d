"""Columns of a table as numbers, and the exchange that settles how: sums by column, and which words there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwater.data.preparation import Array, Arrays, Standardise, pack, unpack
from headwater.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MOST_WORDS = 200  # different words of a column that are given a column each


@dataclass(frozen=True)
class Columns:
    """The features of a table. Words stand in it by number, until it is settled which of them the clients have."""

    names: tuple[str, ...]
    words: tuple[tuple[str, ...] | None, ...]  # by column; none for a column of numbers

    @classmethod
    def of(cls, frame: DataFrame, name: str) -> Columns:
        return cls(tuple(frame.columns), tuple(_words(frame[column], name) for column in frame.columns))

    def encode(self, frame: DataFrame, name: str) -> Array:
        """A row a sample, in float64, so that large numbers keep their digits; NaN where a value is missing."""
        encoded = [
            _numbers(frame[column], name) if words is None else _codes(frame[column], words)
            for column, words in zip(self.names, self.words, strict=True)
        ]
        return np.stack(encoded, axis=1)

    @property
    def numeric(self) -> tuple[int, ...]:
        return tuple(at for at, words in enumerate(self.words) if words is None)

    @property
    def worded(self) -> tuple[int, ...]:
        return tuple(at for at, words in enumerate(self.words) if words is not None)


class Encoded:
    """Numbers with mean 0 and deviation 1, then a column of zeros and ones for each word that some client has.

    A word that nobody trains on, and a word that is missing, is zero in all columns of its kind.
    """

    name = "columns"

    def __init__(self, columns: Columns) -> None:
        self.columns, self._scale = columns, Standardise()

    def measure(self, x: Tensor) -> Arrays:
        return (*self._scale.measure(self._numeric(x)), *(self._have(x, at) for at in self.columns.worded))

    def settle(self, told: Sequence[Arrays]) -> Arrays:
        scale = self._scale.settle([part[:3] for part in told])
        found = []
        for at in range(3, 3 + len(self.columns.worded)):
            words = {word for part in told for word in unpack(part[at])}
            found.append(pack(sorted(words)))
        return (*scale, *found)

    def apply(self, x: Tensor, settled: Arrays) -> Tensor:
        parts = [self._scale.apply(self._numeric(x), settled[:2])]
        for at, packed in zip(self.columns.worded, settled[2:], strict=True):
            known = self.columns.words[at] or ()
            codes = np.rint(np.nan_to_num(x[:, at].numpy().astype(np.float64), nan=-1)).astype(np.int64)
            places = [known.index(word) if word in known else -2 for word in unpack(packed)]
            parts.append(torch.from_numpy((codes[:, None] == np.array(places, dtype=np.int64)).astype(np.float32)))
        return torch.cat(parts, dim=1)

    def _numeric(self, x: Tensor) -> Tensor:
        return x[:, list(self.columns.numeric)]

    def _have(self, x: Tensor, at: int) -> Array:
        codes = x[:, at].numpy()
        words = self.columns.words[at] or ()
        return pack([words[int(code)] for code in np.unique(codes[~np.isnan(codes)])])


def _words(column: Series[Any], name: str) -> tuple[str, ...] | None:
    if column.dtype.kind in "biuf":
        return None
    if column.dtype.kind in "mM":
        raise DataError(
            f"{name}: column {column.name!r} holds times; turn them into numbers, or leave it out with data.drop"
        )
    present = column.dropna().astype(str).str.replace("\0", " ")
    found = sorted(set(present) - {""})
    if len(found) > MOST_WORDS:
        import pandas as pd

        odd = present[pd.to_numeric(present, errors="coerce").isna()]
        number = len(odd) < len(present) // 10
        hint = (
            f"most are numbers, but not {odd.iloc[0]!r}; correct these"
            if number
            else "if it is a number or text that names rows"
        )
        raise DataError(
            f"{name}: column {column.name!r} holds {len(found)} different words, more than {MOST_WORDS}; {hint}, "
            "or leave the column out with data.drop"
        )
    return tuple(found)


def _numbers(column: Series[Any], name: str) -> Array:
    if column.dtype.kind not in "biuf":
        raise DataError(
            f"{name}: column {column.name!r} holds words, but numbers in the training table; give both alike"
        )
    values = column.to_numpy(dtype=np.float64)
    if np.isinf(values).any():
        row = int(column.index[np.flatnonzero(np.isinf(values))[0]]) + 1
        raise DataError(f"{name}: row {row} is infinite in column {column.name!r}; replace it or leave the row out")
    return values


def _codes(column: Series[Any], words: tuple[str, ...]) -> Array:
    numbers = {word: float(number) for number, word in enumerate(words)}
    rows = zip(column, column.isna(), strict=True)
    return np.array(
        [np.nan if missing else numbers.get(str(v).replace("\0", " "), np.nan) for v, missing in rows],
        dtype=np.float64,
    )
