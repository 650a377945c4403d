"""What an operator sees of real parties: who is stuck, who is no member; and the final model at every client."""

from __future__ import annotations

import importlib.util
import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

from federation import Federation
from headwater.config import Config
from headwater.core.params import digest
from headwater.deploy.folder import FoundParty
from headwater.deploy.keys import node_keys

LONG = 600.0  # seconds, on a busy machine
SETS = ("data.fraction=0.15", "partition.alpha=1.0", "partition.sectors=1", "partition.clients=2", "local.epochs=1")


def intruder(federation: Federation, name: str, like: str, keys: bool) -> None:
    """A further party with a copy of a client's folder: with the same keys, or with new ones of its own."""
    path = Path(shutil.copytree(federation.found[like].path, federation.out.parent / name))
    shutil.rmtree(path / "state", ignore_errors=True)
    if not keys:
        own = node_keys(like)
        (path / "keys" / "node.key").write_bytes(own.private)
        (path / "keys" / "node.pub").write_bytes(own.public)
    federation.found[name] = FoundParty(path, like, "client")
    federation.start(name)


def visitors(federation: Federation) -> dict[str, Any]:
    """Refused nodes at the link of s0, by the name of the member whose key they have."""
    return {row["name"]: row for row in federation.status("s0").get("visitors") or ()}


@pytest.mark.thorough
def test_the_host_sees_a_stuck_client_a_stranger_and_a_twin_and_all_clients_get_the_model(tmp_path: Path) -> None:
    asked = Config.load(None, [*SETS, "engine.name=inline", "rounds=12", "algorithm.name=fedavg"])
    with Federation.init(tmp_path / "federation", asked) as federation:
        clients = federation.names("client")
        federation.start()
        federation.until_round(1, LONG)
        federation.freeze(clients[0])

        def owing() -> bool:
            member = (federation.status("s0").get("below") or {}).get(clients[0], {})
            return str(member.get("what", "")).startswith("work")

        federation.until(owing, "the host to name the client that does not answer", LONG)
        member = federation.status("s0")["below"][clients[0]]
        assert member["until"] == pytest.approx(member["asked"] + asked.deploy.deadline, abs=1.0)
        assert federation.status("s0")["below"][clients[1]]["answered"] is not None
        assert federation.status("server")["below"]["s0"]["asked"] is not None

        intruder(federation, "stranger", clients[1], keys=False)
        intruder(federation, "twin", clients[1], keys=True)
        federation.until(lambda: visitors(federation).keys() == {"", clients[1]}, "both to be noticed", LONG)
        assert all(row["key"].startswith("SHA256:") for row in visitors(federation).values())
        log = "\n".join(federation.said("s0"))
        assert f"a stranger with the key {visitors(federation)['']['key']} asked to join" in log
        assert f"somebody with the key of {clients[1]} ({visitors(federation)[clients[1]]['key']})" in log
        federation.stop("stranger", "twin")
        for name in ("stranger", "twin"):
            del federation.processes[name], federation.found[name]

        federation.thaw(clients[0])
        assert set(federation.wait(LONG).values()) == {0}
        assert federation.leftovers() == []
        wanted = federation.result()["model_sha256"]
        with safe_open(federation.run / "model.safetensors", "pt") as theirs:
            about = theirs.metadata()
        for client in clients:
            with safe_open(federation.found[client].path / "model.safetensors", "pt") as model:
                assert digest({name: model.get_tensor(name) for name in model.keys()}) == wanted  # noqa: SIM118
                assert model.metadata() == about
            assert not (federation.found[client].path / "personal.safetensors").exists()


@pytest.mark.thorough
def test_metrics_and_health_of_a_running_server(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from process_tree import free_ports

    asked = Config.load(None, [*SETS, "engine.name=inline", "rounds=2", "algorithm.name=local"])
    with Federation.init(tmp_path / "federation", asked) as federation:
        address = f"127.0.0.1:{free_ports(1)}"
        federation.options["server"] = ("--metrics", address, "--log-format", "json", "--log-level", "debug")
        federation.start("server")

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as reply:
                    return bool(json.load(reply)["healthy"])
            except (urllib.error.URLError, ConnectionError):
                return False

        federation.until(healthy, "the server to be healthy", LONG)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as reply:
            text = reply.read().decode()
        assert 'headwater_member_connected{member="s0"} 0.0' in text
        assert 'headwater_party_info{name="server",role="server"' in text
        federation.start(*federation.names("sector"), *federation.names("client"))
        assert set(federation.wait(LONG).values()) == {0}
        lines = (federation.found["server"].state / "logs" / "party.log").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        assert {row["level"] for row in rows} >= {"debug", "info"}
        assert {(row["party"], row["role"]) for row in rows} == {("server", "server")}
        for client in federation.names("client"):  # of this method, every client's own model is the final one
            path = federation.found[client].path
            assert (path / "model.safetensors").read_bytes() == (path / "personal.safetensors").read_bytes()
