"""Engines that the tests of this folder share: starting processes takes seconds, starting a run on them does not.

A Ray cluster listens on the network, so it is only started in a network of its own: test_ray.py runs the contract there
once more, in a process that finds `ray` in HEADWATER_TEST_ENGINES.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import toys
from headwater.engines import ENGINES
from headwater.training.experiment import Experiment

Opened = Callable[..., Any]


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """An engine that hangs fails its test rather than the whole suite."""

    def stop(*_: object) -> None:
        raise TimeoutError("this test has taken an hour, so something waits for what will never come")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(3600)  # far more than a slow and busy machine takes
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="package")
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The engine with this name and number of workers, opened once."""
    engines: dict[tuple[str, int], Any] = {}

    def get(name: str, workers: int = 2) -> Any:
        if (name, workers) == ("pool", 2):
            return request.getfixturevalue("two_workers")
        if (name, workers) not in engines:
            kind = ENGINES.load(name)
            engines[name, workers] = kind() if name == "inline" else kind(workers)
        return engines[name, workers]

    yield get
    for engine in engines.values():
        engine.close()


@pytest.fixture(params=toys.TESTED)
def engine(request: pytest.FixtureRequest, opened: Opened, experiment: Experiment) -> Any:
    """Every engine in turn, at the start of a run of the small experiment."""
    made = opened(request.param)
    made.watch = None
    made.start(experiment.context())
    return made


@pytest.fixture(scope="package")
def experiment() -> Experiment:
    """Five clients in two sectors: s0 has c2, c1, c0 and s1 has c4, c3, largest first."""
    return toys.tiny("fedhead", sizes=((4, 8, 12, 6, 10), (0, 0, 0, 1, 1)))
