"""Every method on a second device, which is pretended: all is where it should be, and the bits are the CPU's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headwater.algorithms import ALGORITHMS

TESTS = Path(__file__).parent.parent
QUICK = ("fedavg", "fedhead", "momentum, stacked", "waits", "forgotten", "stacked: cnn")
STACKS = ("stacked: no norm", "stacked: group norm", "stacked: feddyn", "stacked: resnet8", "stacked: fedhead")
OPTIONS = (
    "adam, clipped",
    "one bit",
    "own tests",
    "few rows stay",
    "batch norm, augmented",
    "learned weights",
    "learned weights of logits",
    "confidence",
    "label counts",
    "averaged weights",
    "swag",
    "unit deltas",
    "mixtures",
    "noise",
    "public soft labels",
    "filters",
)


@cache
def outcomes(*cases: str) -> dict[str, Any]:
    """Run cases in a process of their own, since a device that is registered stays."""
    found = subprocess.run(
        [sys.executable, str(TESTS / "tasks" / "inside_pretend.py"), *cases],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return {case: facts for line in found.stdout.splitlines() for case, facts in json.loads(line).items()}


def is_same(facts: dict[str, Any]) -> None:
    """The same model and the same rows, loss by loss; and something was computed there."""
    assert facts["hashes"][0] == facts["hashes"][1]
    assert facts["rows"][0] == facts["rows"][1]
    assert facts["device"] == ["cpu", "pretend"]
    assert facts["crossed"] > 0


@pytest.mark.parametrize("case", QUICK[:3])
def test_same_bits(case: str) -> None:
    is_same(outcomes(*QUICK)[case])


def test_a_forgotten_tensor_is_noticed() -> None:
    facts = outcomes(*QUICK)["forgotten"]
    assert facts["cpu"] == "Params"
    assert "a tensor on the CPU met one on the device" in facts["pretend"]


def test_training_waits_for_the_device_once() -> None:
    """Losses are read at the end, so more steps do not mean more waiting."""
    assert outcomes(*QUICK)["waits"] == {"3": 1, "30": 1}


def is_stacked(facts: dict[str, Any]) -> None:
    """By itself on the device, with the bits of a stack on the CPU, and as near to a loop as float32 allows."""
    assert facts["ways"] == ["vmap", "vmap", "loop", "loop"]
    here, cpu, _ = facts["hashes"]
    assert here == cpu
    assert facts["gap"] < 5e-5


def test_convolutions_are_stacked_on_the_device() -> None:
    is_stacked(outcomes(*QUICK)["stacked: cnn"])


@pytest.mark.thorough
@pytest.mark.parametrize("case", STACKS)
def test_every_kind_of_convolutions_is_stacked_on_the_device(case: str) -> None:
    is_stacked(outcomes(*STACKS, "stacked workers")[case])


@pytest.mark.thorough
def test_stacks_have_the_same_bits_in_worker_processes() -> None:
    facts = outcomes(*STACKS, "stacked workers")["stacked workers"]
    assert facts["way"] == "vmap"
    assert facts["hashes"][0] == facts["hashes"][1]


@pytest.mark.thorough
def test_resumes_and_predicts() -> None:
    facts = outcomes("resumed")["resumed"]
    assert facts["hashes"][0] == facts["hashes"][1]
    assert facts["predicted"][0] == facts["predicted"][1]
    assert "was computed on 'pretend' so far and this is 'cpu'" in facts["refused"]
    assert "--force" in facts["refused"]


@pytest.mark.thorough
def test_same_bits_in_worker_processes() -> None:
    one, other = outcomes("shared")["shared"]["hashes"]
    assert one == other


half: Callable[[int], list[str]] = lambda which: [m for m in ALGORITHMS if m not in QUICK][which::2]  # noqa: E731


@pytest.mark.thorough
@pytest.mark.parametrize("method", [m for m in ALGORITHMS if m not in QUICK])
def test_every_method(method: str) -> None:
    is_same(outcomes(*half(0 if method in half(0) else 1))[method])


@pytest.mark.thorough
@pytest.mark.parametrize("case", OPTIONS)
def test_every_path(case: str) -> None:
    is_same(outcomes(*OPTIONS)[case])
