"""Which rows a client trains on and which it keeps for a test of its own, found when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from headwater.core.lazy_clients import number_of
from headwater.core.rng import stream
from headwater.partition.base import Ints


def kept(length: int, share: float) -> int:
    """How many of its rows a client keeps for its own test; it always has one to train on, if it has any."""
    return min(round(share * length), max(0, length - 1))


def training_sizes(lengths: Ints, share: float) -> Ints:
    """How many rows each client trains on."""
    if not share:
        return lengths
    kinds, places = np.unique(lengths, return_inverse=True)
    return np.array([length - kept(length, share) for length in kinds.tolist()], dtype=np.int64)[places]


class OwnRows(Mapping[str, Ints]):
    """Client → its rows of the training set: those to train on or, with `test`, those kept for its own test."""

    def __init__(self, indices: Sequence[Ints], share: float, seed: int, *, test: bool) -> None:
        self._indices, self._share, self._seed, self._test = indices, share, seed, test

    def __getitem__(self, client: str) -> Ints:
        number = number_of(client, len(self._indices))
        if number is None:
            raise KeyError(client)
        indices = self._indices[number]
        held = kept(len(indices), self._share)
        if not held:  # the order does not matter then, and is not drawn
            return indices[:0].copy() if self._test else indices.copy()
        order = stream(self._seed, "local_test", number).permutation(len(indices))
        return np.sort(indices[order[:held] if self._test else order[held:]])

    def __contains__(self, client: object) -> bool:
        return number_of(client, len(self._indices)) is not None

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[str]:
        return (f"c{number}" for number in range(len(self._indices)))
