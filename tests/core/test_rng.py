"""Streams are functions of their names alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from headwater.core.rng import _Mixed, _mixed, derive, stream, streams


def test_same_name_same_numbers_whatever_was_drawn_before() -> None:
    first = stream(3, "leader", 1).random(5)
    stream(3, "leader", 2).random(1000)
    assert (stream(3, "leader", 1).random(5) == first).all()


def test_every_part_of_the_name_counts() -> None:
    names = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", "1"), (0, "a", 1, 2), (0, "a", 12)]
    assert len({derive(*name) for name in names}) == len(names)


def test_streams_do_not_depend_on_the_process() -> None:
    code = "from headwater.core.rng import derive; print(derive(7, 'task', 3, 'c1'))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(there.stdout) == derive(7, "task", 3, "c1")


def test_a_known_number_guards_against_a_changed_derivation() -> None:
    assert stream(0, "partition").integers(0, 1000, 3).tolist() == [344, 546, 892]


def test_many_streams_at_once_are_the_same_streams() -> None:
    names = [("task", 3, "local_train", 0, f"c{number}") for number in range(40)] + [("a",), (1,)]
    for found, name in zip(streams(7, names), names, strict=True):
        alone = stream(7, *name)
        assert found.permutation(50).tolist() == alone.permutation(50).tolist()
        assert found.random(3).tolist() == alone.random(3).tolist()
    assert streams(7, []) == []


def test_seeds_are_mixed_as_numpy_does_it() -> None:
    seeds = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1, derive(0, "x")]
    expected = [np.random.SeedSequence(seed).generate_state(4, np.uint64).tolist() for seed in seeds]
    assert _mixed(np.array(seeds, dtype=np.uint64)).tolist() == expected


def test_a_mixed_seed_serves_no_other_generator() -> None:
    (mixed,) = _mixed(np.array([7], dtype=np.uint64))
    with pytest.raises(ValueError, match="4 words of uint64, not 2 of uint64"):
        _Mixed(mixed).generate_state(2, np.uint64)
    with pytest.raises(ValueError, match="not 4 of uint32"):
        _Mixed(mixed).generate_state(4)
