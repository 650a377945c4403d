"""Fixtures for every test, and which target runs which test.

`make test` runs every test without the marker `thorough`, in six minutes on 2 cores. It covers each kind of
part (method, engine, partitioner, model, data set, command) and each promise (equal bits on every engine, exact
resume, ledger equal to the closed forms, a federation over in-process links, Flower links, Ray, the page in a browser)
at least once.
`make test-all` runs the `thorough` tests as well: further parameters of tests that run in `make test` anyway, and
tests that take many seconds because they start processes, train ten rounds or read large data sets. Mark a new test
`thorough` if it takes more than about a second and a quicker test covers the same promise; of a parametrised test,
mark the further parameters only, with `first` or `further` of chosen.py, which also says which methods are tried in
`make test` where a test is for all of them. Tests that take minutes are skipped unless HEADWATER_SLOW=1.
A process that imports torch takes three seconds of a core, so call commands in this process (the fixture `call`) and
train on the fixture `two_workers` unless the process itself is what is tested.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.main
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from headwater.engines.pool import Pool

# Several test processes share the cores, so each takes its share of threads; torch reads this when it is imported.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    each = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, each)))

# No test may depend on how fast the machine is, or on how busy.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A process has one command line, so Typer makes its commands anew for each; tests have hundreds.
typer.main.get_command = cache(typer.main.get_command)

gc.disable()  # what is made while tests are collected stays, so looking through it again and again is in vain


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _as_if_it_were_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests train so little that all clients would share one job, and workers would have nothing to share. And a plan
    takes most of a second to time a step of a model, which is more than a test trains."""
    monkeypatch.setattr("headwater.training.opening.SMALL", 0.0)
    monkeypatch.setattr("headwater.planning.timing.BUDGET", 0.05)


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Pool]:
    """A pool of two workers for all tests of this process: starting one takes longer than what most tests train."""
    from headwater.engines.pool import Pool

    made = Pool(2)
    yield made
    made.close()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of real data sets, or a skip that says what is missing."""
    folder = os.environ.get("HEADWATER_DATA", "")
    if not folder:
        pytest.skip("HEADWATER_DATA is not set: point it at a directory with the packed data sets to run this test")
    if not Path(folder).is_dir():
        pytest.skip(f"HEADWATER_DATA names {folder!r}, which is not a directory")
    return Path(folder)
