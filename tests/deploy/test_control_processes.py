"""A federation of real processes that is paused, resumed, stopped and started again."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

from federation import Federation, command
from headwater.cli.app import main
from headwater.config import Config
from headwater.deploy.control import FILE
from headwater.training.experiment import prepare
from headwater.training.loop import train

LONG = 300.0  # seconds, on a busy machine


@pytest.mark.thorough
def test_processes_are_paused_stopped_and_started_again(tmp_path: Path) -> None:
    """Over real links: everybody stays while paused, everybody ends when stopped, and the bits are the simulation's."""
    sets = ("data.fraction=0.15", "partition.alpha=1.0", "partition.sectors=1", "partition.clients=2", "rounds=8")
    asked = Config.load(None, [*sets, "engine.name=inline", "algorithm.name=scaffold", "local.epochs=10"])
    with Federation.init(tmp_path / "federation", asked) as federation:
        server = str(federation.found["server"].path)

        def phase() -> Any:
            return federation.status("server").get("phase")

        federation.start()
        federation.until_round(1, 3 * LONG)
        assert main(["deploy", "pause", server, "--quiet"]) == 0
        federation.until(lambda: phase() == "paused", "pause", LONG)
        sent = [(party.state / "sent.jsonl").stat().st_size for party in federation.found.values()]
        time.sleep(4)
        assert sent == [(party.state / "sent.jsonl").stat().st_size for party in federation.found.values()]
        assert phase() == "paused"
        assert all(map(federation.running, federation.found)), "everybody stays"
        assert federation.status("server")["present"] == ["s0"]
        shown = json.loads(command("deploy", "status", server, "--json"))[0]
        assert (shown["phase"], shown["up"]) == ("paused", True)
        assert shown["seconds"] < 5, "it is alive"
        at = shown["round"]
        assert main(["deploy", "resume", server, "--quiet"]) == 0
        federation.until_round(at + 2, LONG)
        assert main(["deploy", "stop", server, "--quiet"]) == 0
        assert set(federation.wait(LONG).values()) == {0}
        assert federation.leftovers() == []
        assert not (federation.run / "result.json").exists()
        for name, party in federation.found.items():
            assert federation.status(name)["phase"] == "stopped"
            assert "has stopped the federation before round" in (party.state / "logs/party.log").read_text()
        assert not (federation.found["server"].state / FILE).exists()
        federation.start()
        assert set(federation.wait(3 * LONG).values()) == {0}
        assert federation.leftovers() == []
        assert [line for name in federation.found for line in federation.said(name) if "left out" in line] == []
    assert federation.result()["model_sha256"] == train(prepare(asked)).result["model_sha256"]
    assert [json.loads(row)["round"] for row in (federation.run / "rounds.jsonl").read_text().splitlines()] == [
        *range(1, 9)
    ]
