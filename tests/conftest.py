"""Fixtures for every test, and which target runs which test.

`make test` runs every test without the marker `thorough`, in six minutes on 2 cores. It covers each kind of
part (method, engine, partitioner, model, data set, command) and each promise (equal bits on every engine, exact
resume, ledger equal to the closed forms, a federation over in-process links, Flower links, Ray, the page in a browser)
at least once.
`make test-all` runs the `thorough` tests as well: further parameters of tests that run in `make test` anyway, and
tests that take many seconds because they start processes, train ten rounds or read large data sets. Mark a new test
`thorough` if it takes more than about 5 seconds and a quicker test covers the same promise; of a parametrised test,
mark the further parameters only: `pytest.param(value, marks=pytest.mark.thorough)`. Tests that take minutes are
skipped unless HEADWATER_SLOW=1.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Several test processes share the cores, so each takes its share of threads; torch reads this when it is imported.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    each = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, each)))

# No test may depend on how fast the machine is, or on how busy.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _a_job_for_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests train so little that all clients would share one job, and workers would have nothing to share."""
    monkeypatch.setattr("headwater.training.opening.SMALL", 0.0)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of real data sets, or a skip that says what is missing."""
    folder = os.environ.get("HEADWATER_DATA", "")
    if not folder:
        pytest.skip("HEADWATER_DATA is not set: point it at a directory with the packed data sets to run this test")
    if not Path(folder).is_dir():
        pytest.skip(f"HEADWATER_DATA names {folder!r}, which is not a directory")
    return Path(folder)
