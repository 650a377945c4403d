"""Exactly so many classes at every client."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from headwater.core.rng import stream
from headwater.errors import ConfigError
from headwater.partition.exact_classes import ExactClasses
from headwater.partition.partition import Partition
from partition.contract import USUAL

LABELS = stream(7).permutation(np.repeat(np.arange(10), 60))


def classes_of(parts: list[np.ndarray], labels: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.unique(labels[part]).tolist()) for part in parts]


@pytest.mark.parametrize("clients", [1, 7, 10, 20, 60])
@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_every_client_has_exactly_so_many(classes: int, clients: int) -> None:
    if clients * classes < 10:
        with pytest.raises(ConfigError, match=f"at least {-(-10 // classes)} clients, .* at least {-(-10 // clients)}"):
            ExactClasses(classes=classes).split(LABELS, clients, stream(0))
        return
    for seed in range(3):
        parts = ExactClasses(classes=classes).split(LABELS, clients, stream(seed))
        assert {len(own) for own in classes_of(parts, LABELS)} == {classes}
        assert sum(map(len, parts)) == 600


def test_classes_have_equally_many_clients_who_share_them_evenly() -> None:
    """20 clients with 2 of 10 classes: 4 clients to a class, with 15 of its 60 samples each."""
    parts = ExactClasses(classes=2).split(LABELS, 20, stream(0))
    counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert (counts > 0).sum(axis=0).tolist() == [4] * 10
    assert set(counts.ravel().tolist()) == {0, 15}


def test_pairs_of_classes_are_drawn() -> None:
    """Which classes come together differs from client to client and from seed to seed."""
    pairs = [classes_of(ExactClasses().split(LABELS, 40, stream(seed)), LABELS) for seed in range(2)]
    assert len({*pairs[0]}) > 15
    assert pairs[0] != pairs[1]


def test_a_small_class_has_fewer_clients() -> None:
    """200, 50, 7 and 1 samples for 20 clients with 2 classes: 40 shares, of which the small classes make 7 + 1."""
    labels = np.repeat([0, 1, 2, 3], [200, 50, 7, 1])
    parts = ExactClasses(classes=2).split(labels, 20, stream(0))
    found = classes_of(parts, labels)
    assert {len(own) for own in found} == {2}
    assert [sum(kind in own for own in found) for kind in range(4)] == [16, 16, 7, 1]


def test_refuses_what_is_impossible() -> None:
    for labels, clients, classes, words in [
        (LABELS, 20, 11, "the data has 10; use at most 10"),
        (np.repeat([0, 1, 2], [50, 2, 2]), 10, 2, r"20 times .* suffice for 14; .* a partition.classes of at most 1"),
        (np.array([0, 1, 1]), 8, 1, r"suffice for 3; use fewer clients$"),
    ]:
        with pytest.raises(ConfigError, match=words):
            ExactClasses(classes=classes).split(labels, clients, stream(0))
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        ExactClasses(classes=0)


def test_the_split_of_a_seed_is_fixed() -> None:
    labels, clients = USUAL
    parts = ExactClasses().split(labels, clients, stream(0, "partition"))
    assert Partition(parts, (0,) * clients).sha256[:16] == "ac0b535604245acd"
