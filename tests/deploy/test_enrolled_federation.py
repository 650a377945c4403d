"""A federation of real processes whose parties made their keys themselves, and replace them while a run goes on."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

from federation import Federation
from headwater.cli.app import main
from headwater.config import Config
from headwater.deploy.keys import fingerprint
from headwater.training.experiment import prepare
from headwater.training.loop import train

LONG = 300.0  # seconds, on a busy machine


def headwater(*words: object) -> None:
    assert main(["deploy", *map(str, words), "--quiet"]) == 0


@pytest.mark.thorough
def test_keys_made_by_the_parties_and_rotated_between_restarts(tmp_path: Path) -> None:
    """The bits are the simulation's; the rotated parties rejoin, and somebody with an old key does not."""
    sets = ("data.fraction=0.15", "partition.alpha=1.0", "partition.sectors=1", "partition.clients=2", "rounds=5")
    asked = Config.load(None, [*sets, "engine.name=inline", "algorithm.name=scaffold", "local.epochs=10"])
    out = tmp_path / "federation"
    approval = out / "approval.json"
    with Federation.init(out, asked, enrol=True) as federation:
        for name in federation.found:
            headwater("enrol", out / name)
        headwater("approve", out, *(out / name / f"{name}.request.json" for name in federation.found))
        for name in federation.found:
            headwater("enrol", out / name, "--approval", approval)
        federation.start()
        federation.until_round(1, 3 * LONG)
        headwater("pause", out / "server")  # so that the test need not hurry
        federation.until(lambda: federation.status("server").get("phase") == "paused", "pause", LONG)
        for name in ("c0", "s0"):
            headwater("rotate", out / name)
        headwater("approve", out, out / "c0" / "c0.request.json", out / "s0" / "s0.request.json")
        headwater("stop", out / "server")
        assert set(federation.wait(LONG).values()) == {0}
        assert not (federation.run / "result.json").exists()

        keys = out / "c0" / "keys"
        old = (keys / "node.key").read_bytes(), (keys / "node.pub").read_bytes()
        certificate = (out / "s0" / "keys" / "link.crt").read_bytes()
        for name in ("server", "s0"):  # c0 does not install it yet, and comes with its old key
            headwater("enrol", out / name, "--approval", approval)
        assert (out / "s0" / "keys" / "link.crt").read_bytes() != certificate
        headwater("pause", out / "server")  # nobody is asked for anything until all are back
        federation.start()
        stranger = f"a stranger with the key {fingerprint(old[1])} asked to join this link and was refused"
        federation.until(lambda: stranger in federation.said("s0"), "c0 to be refused with its old key", LONG)
        federation.stop("c0")
        assert (keys / "node.key").read_bytes() == old[0]
        headwater("enrol", out / "c0", "--approval", approval)
        assert (keys / "node.key").read_bytes() != old[0]
        federation.start("c0")
        federation.until(lambda: federation.status("s0")["present"] == ["c0", "c1"], "c0 to come back", LONG)
        federation.until(lambda: federation.status("server")["present"] == ["s0"], "s0 to come back", LONG)
        headwater("resume", out / "server")
        assert set(federation.wait(3 * LONG).values()) == {0}
        assert federation.leftovers() == []
    assert federation.result()["model_sha256"] == train(prepare(asked)).result["model_sha256"]
