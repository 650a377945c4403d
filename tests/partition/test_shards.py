"""Sorted, cut and dealt."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from headwater.core.rng import stream
from headwater.partition.shards import Shards

LABELS = stream(7).permutation(np.repeat(np.arange(10), 60))


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_pieces_that_fit_the_classes_hold_one_class_each(shards: int) -> None:
    """600 samples in 10·shards pieces: each lies within one class, so a client holds at most `shards` classes."""
    parts = Shards(shards=shards).split(LABELS, 10, stream(0))
    assert {len(part) for part in parts} == {60}
    assert max(len(np.unique(LABELS[part])) for part in parts) <= shards


def test_by_hand() -> None:
    """Six samples of three classes for three clients with one piece each: every client one class whole."""
    labels = np.array([2, 0, 1, 1, 0, 2])
    found = sorted(part.tolist() for part in Shards(shards=1).split(labels, 3, stream(0)))
    assert found == [[0, 5], [1, 4], [2, 3]]


def test_many_shards_come_near_the_whole() -> None:
    parts = Shards(shards=30).split(LABELS, 10, stream(0))
    assert min(len(np.unique(LABELS[part])) for part in parts) >= 8


def test_refuses_none() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Shards(shards=0)
