"""Rows that a client trains on, and rows that it keeps for a test of its own. Both are computed when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from headwater.core.lazy_clients import number_of
from headwater.core.rng import stream
from headwater.partition.partition import Ints


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


class OwnRows(Mapping[str, Ints]):
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
        test_size = kept(len(indices), self._share)
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
