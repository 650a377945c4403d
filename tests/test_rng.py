"""Streams are functions of their names alone."""

from __future__ import annotations

import subprocess
import sys

from headwater.rng import derive, stream


def test_same_name_same_numbers_whatever_was_drawn_before() -> None:
    first = stream(3, "leader", 1).random(5)
    stream(3, "leader", 2).random(1000)
    assert (stream(3, "leader", 1).random(5) == first).all()


def test_every_part_of_the_name_counts() -> None:
    names = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", "1"), (0, "a", 1, 2), (0, "a", 12)]
    assert len({derive(*name) for name in names}) == len(names)


def test_streams_do_not_depend_on_the_process() -> None:
    code = "from headwater.rng import derive; print(derive(7, 'task', 3, 'c1'))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(there.stdout) == derive(7, "task", 3, "c1")


def test_a_known_number_guards_against_a_changed_derivation() -> None:
    assert stream(0, "partition").integers(0, 1000, 3).tolist() == [344, 546, 892]
