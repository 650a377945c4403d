"""Equal bits rest on nothing that a numerical library does not promise.

All engines give the same bits on this machine, which may be luck: here the kernels happen to round alike wherever the
numbers lie, however many threads there are and whoever else is in a batch. So every method is run once more with a
library that makes as much of such differences as it may (library.py), in a process of its own (inside.py).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from headwater.algorithms import ALGORITHMS
from hostile import library
from processes import output_of, own_network

HERE = Path(__file__).parent
SLOW = os.environ.get("HEADWATER_SLOW") == "1"
PATIENCE = 3000 if SLOW else 1200  # seconds; on a busy machine all of this is slow
METHODS = list(ALGORITHMS)
SOME = ["fedavg", "mtgc", "fedhead+", "fedhkd"]  # with other nets; on Ray, too

EVERY = ["inline", "hands-2", "hands-3", "inline-little", "pool-1", "pool-2", "pool-3", "pool-2-little"]
EVERY += ["resumed:inline:inline", "resumed:pool-2:inline", "resumed:inline:pool-2"]
MANY = ["inline", "hands-3", "inline-little", "pool-3", "resumed:pool-3:inline"]  # one of each kind
FEW = ["inline", "inline-little", "pool-2"]

Test = tuple[str, str, int]


def played(tests: Iterable[Test], places: list[str], before: Iterable[str] = ()) -> dict[tuple[str, str, str], Any]:
    """What each test gave at each place."""
    command = [*before, sys.executable, str(HERE / "inside.py"), json.dumps([list(tests), places])]
    found: dict[tuple[str, str, str], Any] = {}
    for line in map(json.loads, output_of(command, PATIENCE, library.environment()).splitlines()):
        found[line.pop("method"), line.pop("net"), line.pop("place")] = line
    return found


def parted(found: dict[tuple[str, str, str], Any], places: list[str]) -> list[str]:
    """Where something else came out than at the first place."""
    said = []
    for method, net in dict.fromkeys((method, net) for method, net, _ in found):
        expected = found[method, net, places[0]]
        for place in places:
            got = found[method, net, place]
            if "error" in got:
                said.append(f"{method}, {net}, {place}: {got['error']}")
            elif got != expected:
                other = [key for key in got if got[key] != expected[key]]
                said.append(f"{method}, {net}, {place}: another {' and '.join(other)} than {places[0]}")
    return said


def numbered(methods: Iterable[str], *nets: str) -> list[Test]:
    """The number of a method says how it steps, so that all of it occurs."""
    return [(method, net, METHODS.index(method) + at) for at, net in enumerate(nets) for method in methods]


def same_everywhere(tests: list[Test], places: list[str], before: Iterable[str] = ()) -> dict[str, set[str]]:
    """The methods that were stacked in each way."""
    found = played(tests, places, before)
    said = parted(found, places)
    assert not said, "\n".join(said)
    ways: dict[str, set[str]] = {}
    for (method, _, _), got in found.items():
        ways.setdefault(got["way"], set()).add(method)
    return ways


def test_two_methods_give_the_same_bits_with_clients_in_stacks() -> None:
    """One of each kind of step, at a place of each kind."""
    places = ["inline", "hands-3", "inline-little", "pool-2", "resumed:pool-2:inline"]
    ways = same_everywhere(numbered(["fedhead+"], "stacked") + numbered(["mtgc"], "plain"), places)
    assert ways == {"hand": {"fedhead+", "mtgc"}}


@pytest.mark.thorough
def test_every_method_gives_the_same_bits_with_clients_in_stacks() -> None:
    tests = numbered(METHODS, "stacked") + numbered(METHODS if SLOW else SOME, "plain")
    ways = same_everywhere(tests, EVERY if SLOW else MANY)
    assert set(ways) == {"hand"}
    assert {"fedavg", "scaffold", "fedprox", "feddyn", "mtgc", "feddf", "fedhead"} <= ways["hand"]


@pytest.mark.thorough
def test_every_method_gives_the_same_bits_with_one_client_after_the_other() -> None:
    """Some also with torch's own batching, batch norm and convolutions, stacked and not."""
    others = numbered(METHODS if SLOW else SOME, "mapped", "normed", "conv", "grouped")
    ways = same_everywhere(numbered(METHODS, "alone") + others, EVERY if SLOW else FEW)
    assert ways["loop"] == set(METHODS)
    assert {"fedavg", "mtgc"} <= ways["vmap"]


@pytest.mark.thorough
def test_stacked_convolutions_give_the_same_bits() -> None:
    ways = same_everywhere(numbered(["scaffold"], "grouped"), MANY)
    assert ways == {"vmap": {"scaffold"}}


@pytest.mark.thorough
def test_ray_gives_the_same_bits() -> None:
    pytest.importorskip("ray", reason="ray is not installed; get it with: pip install 'headwater[ray]'")
    same_everywhere(numbered(METHODS if SLOW else SOME, "plain", "alone"), ["inline", "ray-2"], own_network())
