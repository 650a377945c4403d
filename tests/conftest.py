"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _a_job_for_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests train so little that all clients would share one job, and workers would have nothing to share."""
    monkeypatch.setattr("headwater.training.SMALL", 0.0)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of real data sets, or a skip that says what is missing."""
    folder = os.environ.get("HEADWATER_DATA", "")
    if not folder:
        pytest.skip("HEADWATER_DATA is not set: point it at a directory with the packed data sets to run this test")
    if not Path(folder).is_dir():
        pytest.skip(f"HEADWATER_DATA names {folder!r}, which is not a directory")
    return Path(folder)
