"""A secure sum between processes, one of which is killed in its midst; `make secure-check` does so in each step."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

from headwater.config import Config
from secure_trial import Loss, carry_out, exposed, kinds_sent_up, simulated, sums

SMALL = ("data.fraction=0.15", "partition.alpha=1.0", "partition.sectors=1", "partition.clients=3", "local.epochs=1")
FEDEED = ("algorithm.name=fedeed", "algorithm.cohorts=1", "privacy.secure=both")


@pytest.mark.thorough
def test_a_client_killed_after_its_shares_is_in_no_sum_and_nobody_sees_a_single_model(tmp_path: Path) -> None:
    asked = Config.load(None, [*SMALL, *FEDEED, "rounds=1", "engine.name=inline", "deploy.deadline=120"])
    loss = Loss("c0", "mask_value", 1)
    trial = carry_out(tmp_path / "federation", asked, loss)
    assert trial.federation.leftovers() == []
    assert trial.federation.result()["model_sha256"] == simulated(asked, loss).result["model_sha256"]
    assert sums(trial) == [(1, "server", ("c1", "c2"))]
    found, looked = exposed(trial)
    assert found == []
    assert looked["models"] == 3 * 4
    assert looked["masked"] >= 2 * 3 * 2  # two masked models at the host and the server, held against each of three
    assert "model" not in kinds_sent_up(trial)
