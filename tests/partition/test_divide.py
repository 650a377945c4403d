"""Rows to train on and rows kept for a client's own test."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.rng import stream
from headwater.partition.divide import DrawnTests, OwnRows, training_sizes
from headwater.partition.drawn import DrawnClients


def written_out(indices: list[Any], share: float, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Everybody's, ahead of need."""
    rows, tests = {}, {}
    for number, own in enumerate(indices):
        held = min(round(share * len(own)), max(0, len(own) - 1))
        order = stream(seed, "local_test", number).permutation(len(own))
        tests[f"c{number}"] = np.sort(own[order[:held]])
        rows[f"c{number}"] = np.sort(own[order[held:]])
    return rows, tests


@given(
    st.lists(st.integers(0, 25), min_size=1, max_size=8), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]), st.integers(0, 9)
)
@settings(max_examples=80)
def test_they_are_those_that_would_be_written_out(sizes: list[int], share: float, seed: int) -> None:
    ends = np.cumsum([0, *sizes])
    indices = [np.arange(ends[at], ends[at + 1]) * 2 for at in range(len(sizes))]
    rows, tests = written_out(indices, share, seed)
    found = {test: OwnRows(indices, share, seed, test=test) for test in (False, True)}
    for client in rows:
        assert np.array_equal(found[False][client], rows[client])
        assert np.array_equal(found[True][client], tests[client])
    assert list(found[False]) == list(rows)
    assert training_sizes(np.array(sizes), share).tolist() == [len(own) for own in rows.values()]


def test_they_are_the_askers_own() -> None:
    """Tensors are made of them, which must not be read-only."""
    indices = (np.arange(6),)
    indices[0].flags.writeable = False
    OwnRows(indices, 0.0, 0, test=False)["c0"][0] = 9
    assert indices[0][0] == 0


def test_a_million_clients_travel_in_little_room() -> None:
    made = OwnRows(DrawnClients(size=20).population(np.arange(500) % 5, 1_000_000, 0), 0.2, 3, test=False)
    assert len(made) == 1_000_000
    packed = pickle.dumps(made)
    assert len(packed) < 2000
    assert np.array_equal(pickle.loads(packed)["c654321"], made["c654321"])
    assert len(made["c654321"]) == 16


def test_who_is_no_client_has_no_rows() -> None:
    made = OwnRows((np.arange(6), np.arange(2)), 0.0, 0, test=False)
    assert "c1" in made
    for name in ("c2", "server", "s0", "c01"):
        assert made.get(name) is None
        assert name not in made
        with pytest.raises(KeyError):
            made[name]


def test_tests_drawn_from_the_test_set_have_the_clients_labels() -> None:
    """c0 holds 6, 3 and 3 rows of three classes and draws half as many; of class 0 the test set has two only."""
    labels = np.array([0] * 6 + [1] * 3 + [2] * 3 + [1] * 4)
    own = OwnRows([np.arange(12), np.arange(12, 16), np.arange(0)], 0.0, 5, test=False)
    tested = np.array([1, 2] * 10 + [0, 0])
    made = DrawnTests(own, labels, tested, 0.5, 5)
    first = made["c0"]
    assert np.bincount(tested[first], minlength=3).tolist() == [2, 2, 1]  # of 3, 1.5 and 1.5; a tie goes to the lower
    assert len(set(first.tolist())) == len(first)
    assert np.bincount(tested[made["c1"]], minlength=3).tolist() == [0, 2, 0]
    assert len(made["c2"]) == 0
    assert np.array_equal(first, DrawnTests(own, labels, tested, 0.5, 5)["c0"])
    assert list(made) == ["c0", "c1", "c2"]
    assert "c3" not in made
