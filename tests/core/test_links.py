"""Simulated time: how often all wait for a link, and that its speed changes no result."""

from __future__ import annotations

import pytest

import headwater as hw
from headwater.config.sections import LinksConfig
from headwater.core.links import Links

FEW = {"model": "mlp", "hidden": (4,), "clients": 4, "sectors": 2, "rounds": 2, "fraction": 0.2}
STAGES = {"local__epochs": 1, "sector__epochs": 1}


def test_seconds_of_a_link_by_hand():
    links = Links(server_sector_mbps=8, sector_client_mbps=80, server_sector_ms=500, sector_client_ms=0)
    assert links.seconds("server_sector", 3_000_000, trips=2) == pytest.approx(3 + 1)
    assert links.seconds("sector_client", 3_000_000, trips=2) == pytest.approx(0.3)
    assert LinksConfig().model_dump() == vars(Links())


@pytest.mark.parametrize(
    ("method", "waits"),
    [("fedavg", (1, 1)), ("hfedavg", (1, 1)), ("fedhead", (2, 1)), ("local", (0, 0))],
)
def test_round_trips_that_all_wait_for(method, waits):
    """FedHEAD's leaders send their sector's mean, get the mean of all and send their student: two trips."""
    stages = {key: STAGES[key] for key in STAGES if method == "fedhead" or key.startswith("local")}
    run = hw.run(method, **FEW, **stages)
    assert [(*row["waits"].values(),) for row in run.history] == [waits] * 2
    assert [*run.history[0]["waits"]] == ["server_sector", "sector_client"]
    if method != "fedhead":  # one plan is enough
        return
    planned = hw.plan(method, **FEW, **stages)
    far, near = (sum(run.ledger.of_round(1)[tier].values()) for tier in ("server_sector", "sector_client"))
    sectors = 2
    by_hand = 8e-8 * far + 0.04 * waits[0] + 4e-7 * near / sectors + 0.01 * waits[1]
    assert planned.transfer == pytest.approx({"a_round": by_hand, "total": 2 * by_hand})


def test_link_speeds_change_no_result_and_no_run(tmp_path):
    quick = hw.run("fedavg", **FEW, local__epochs=1, out=tmp_path / "run")
    slow = hw.run("fedavg", **FEW, local__epochs=1, server_sector_mbps=1, sector_client_ms=900)
    assert slow.result["model_sha256"] == quick.result["model_sha256"]
    again = hw.run("fedavg", **FEW, local__epochs=1, server_sector_mbps=1, out=tmp_path / "run")
    assert again.result["seconds"] == quick.result["seconds"], "the finished run is found, not another one"


def test_a_row_names_the_leaders():
    run = hw.run("fedhead", **FEW, **STAGES)
    sectors = run.partition["sectors"]
    for row in run.history:
        assert sorted(row["leaders"]) == ["s0", "s1"] == sorted(row["distill"])
        assert all(sectors[int(client[1:])] == int(sector[1:]) for sector, client in row["leaders"].items())
    assert "leaders" not in hw.run("fedavg", **FEW, local__epochs=1).history[0]
