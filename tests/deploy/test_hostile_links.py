"""Over real links: a client that attacks costs itself only, callers without a key are not listened to, and waiting is
waiting."""

from __future__ import annotations

import importlib.util
import json
import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)


import federation as tool
from federation import Federation
from flower_party import exchange, folder, parties, serving
from headwater.cli.app import main
from headwater.config import Config
from headwater.deploy.flower import FlowerDownlink, link_ends, waiting
from headwater.deploy.quoting import LONGEST, MOST
from headwater.deploy.transport import Message
from headwater.errors import ConfigError
from process_tree import until

TINY = ("data.fraction=0.3", "partition.alpha=1.0", "partition.sectors=2", "local.epochs=1", "engine.name=inline")
LONG = 900.0  # seconds, on a busy machine

# A client that speaks in the name of others, from round 2 on sends a finite model of 3e38, and fails over a local file
# in round 3.
HOSTILE = """
import torch
from dataclasses import replace
from headwater.core.params import Params
from headwater.deploy import work_messages as work
pack, execute = work.pack, work.execute
def spoilt(head, values):
    huge = {name: replace(value, vector=torch.full_like(value.vector, 3e38))
            if isinstance(value, Params) and not name.startswith("1.") else value for name, value in values.items()}
    return pack(head | {"events": ["round 1: c3 did not answer", "y" * 10_000] * 50}, huge)
def failing(step, *more):
    if step.round == 3:
        raise OSError("/home/ward/patients.csv is gone")
    return execute(step, *more)
work.pack, work.execute = spoilt, failing
"""


@pytest.mark.thorough
def test_a_hostile_client_costs_itself_only_until_it_is_revoked(tmp_path: Path, monkeypatch: Any) -> None:
    """Its updates are refused, its words are quoted, its errors keep their text; then one command at its host ends it,
    while all run and after a restart of the host and the server."""
    asked = Config.load(
        None, [*TINY, "partition.clients=6", "rounds=14", "algorithm.name=fedavg", "deploy.deadline=60"]
    )
    with Federation.init(tmp_path / "f", asked) as federation:
        teams = json.loads((federation.found["server"].path / "federation.json").read_text())["sectors"]
        bad, host = teams["s0"][0], "s0"
        with monkeypatch.context() as patch:
            patch.setattr(tool, "HEADWATER", HOSTILE + tool.HEADWATER)
            federation.start(bad)
        federation.start(*(name for name in federation.names() if name != bad))

        def refused(party: str, *words: str) -> list[str]:
            return [line for line in federation.said(party) if all(word in line for word in (*words, "left out"))]

        federation.until(lambda: refused(host, bad, "OSError"), "round 3", LONG)
        federation.until_round(4, LONG)
        assert main(["deploy", "revoke", bad, str(federation.found[host].path), "--quiet"]) == 0
        federation.until(
            lambda: any(f"has revoked {bad}" in line for line in federation.said("server")), "word of it", LONG
        )
        since = federation.status("server")["round"]
        federation.kill("server")
        federation.kill(host)
        federation.start("server", host)
        federation.until(
            lambda: not federation.running("server") or federation.status("server")["phase"] == "finished",
            "the end",
            LONG,
        )
        federation.stop(bad)
        assert set(federation.wait(LONG).values()) - {130} == {0}
    result = federation.result()
    rounds = [json.loads(line) for line in (federation.run / "rounds.jsonl").read_text().splitlines()]
    assert len(rounds) == 14
    assert result["accuracy"] > 0.5
    assert max(row["loss"] for row in rounds) < 10
    # Attack 3: a finite update of 3e38
    assert refused("server", f"{bad} sent an update of") or refused(host, f"{bad} sent")
    # Attack 9: forged and endless lines, and local paths
    for party in (host, "server"):
        said = federation.said(party)
        assert not any(line.startswith("round") and "c3 did not answer" in line for line in said)
        assert max(map(len, said)) < 4 * LONGEST
        assert sum("yyy" in line for line in said) < (MOST + 1) * (since + 1)
        assert not any("patients" in line for line in said)
    assert any(line.startswith(f'{bad} says "round 1: c3 did not') for line in federation.said(host))
    assert any("patients" in line for line in federation.said(bad)), "its own log has it"
    # Revoked: no sector is lost over it, at any time
    assert not [
        line
        for line in federation.said("server")
        if "s0" in line and "left out of this round" in line and "says" not in line
    ]
    assert any(f"{bad} was revoked" in line for line in federation.said(host))


@pytest.mark.thorough
def test_callers_without_a_key_are_not_listened_to(tmp_path: Path) -> None:
    parties(tmp_path, ("c0",))
    place = folder(tmp_path, "server")
    assert place.link is not None
    host, _, port = place.link.address.rpartition(":")
    trust = ssl.create_default_context(cafile=str(place.keys / "ca.crt"))

    def call() -> ssl.SSLSocket:
        return trust.wrap_socket(socket.create_connection((host, int(port)), timeout=60), server_hostname="localhost")

    with ExitStack() as stack:
        stack.enter_context(serving(tmp_path, "c0"))
        link = FlowerDownlink(place)
        stack.callback(link.close)
        until(link.present, "the member", LONG)

        # Of a request that no member signed, only the headers are read
        asked = stack.enter_context(call())
        asked.sendall(
            b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/protobuf\r\n"
            b"content-length: 15000000\r\n\r\n"
        )
        assert asked.recv(100).startswith(b"HTTP/1.1 401")

        # Endless headers are cut off
        endless = stack.enter_context(call())
        with pytest.raises(OSError):
            _send_on(endless)

        # Idle connections do not keep members out, and do not stay
        idle = [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(150)]
        spoken: list[ssl.SSLSocket] = []
        for _ in range(150):
            with suppress(OSError):
                spoken.append(stack.enter_context(call()))
        assert isinstance(exchange(link, "c0", Message({"do": "echo"})), Message)

        def closed(end: socket.socket) -> bool:
            end.settimeout(0.01)
            try:
                return end.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(lambda: all(map(closed, [*idle, *spoken])), "the end of all idle connections", 60)
        assert isinstance(exchange(link, "c0", Message({"do": "echo"})), Message)


def _send_on(end: socket.socket) -> None:
    """Send headers until the other side has closed the connection."""
    for _ in range(1000):
        end.sendall(b"x-more: " + b"y" * 10_000)
        time.sleep(0.001)


@pytest.mark.thorough
def test_a_member_that_is_revoked_is_cut_off_at_once(tmp_path: Path) -> None:
    parties(tmp_path, ("c0", "c1"))
    with ExitStack() as stack:
        said: list[str] = []
        stack.enter_context(serving(tmp_path, "c0"))
        stack.enter_context(serving(tmp_path, "c1"))
        link = FlowerDownlink(folder(tmp_path, "server"), say=said.append)
        stack.callback(link.close)
        until(lambda: link.present() == {"c0", "c1"}, "both members", LONG)
        link.revoke("c1")
        assert link.present() == {"c0"}
        log = tmp_path / "server/state/logs/superlink.log"
        until(lambda: 'activate-node HTTP/1.1" 401' in log.read_text(), "the refusal", LONG)
        assert isinstance(exchange(link, "c0", Message({})), Message)
        assert not isinstance(exchange(link, "c1", Message({})), Message)


class SlowProcess:
    """In place of a Flower process: ends twice before it is up."""

    def __init__(self, title: str, module: str, settings: dict[str, Any], state: Path, on_frame: Any, on_exit: Any):
        self.settings = settings

        def run() -> None:
            time.sleep(0.1)
            for reason in ("exit status 1, it took too long", "exit status 1, it took too long", ""):
                on_exit(reason) if reason else on_frame({"say": "ready"}, None)

        threading.Thread(target=run).start()

    def close(self) -> None: ...


def test_a_link_that_is_slow_to_start_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties(tmp_path, ("c0",))
    said: list[str] = []
    monkeypatch.setattr(link_ends, "FlowerProcess", SlowProcess)
    FlowerDownlink(folder(tmp_path, "server"), say=said.append)
    assert len(said) == 1, "once for one reason"
    assert said[0].endswith("is down and is opened again: exit status 1, it took too long")


def test_an_address_that_is_in_use_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties(tmp_path, ("c0",))
    place = folder(tmp_path, "server")
    assert place.link is not None
    said: list[str] = []
    monkeypatch.setattr(link_ends, "FlowerProcess", SlowProcess)
    host, _, port = place.link.address.rpartition(":")
    with socket.create_server((host, int(port))) as other:
        waiting = threading.Thread(target=lambda: FlowerDownlink(place, say=said.append))
        waiting.start()
        until(lambda: said, "a word about it", 60)
        assert waiting.is_alive()
        other.close()
        waiting.join(60)
    assert not waiting.is_alive()
    assert "cannot be opened at" in said[0]


def test_a_port_that_this_user_may_not_use_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties(tmp_path, ("c0",))
    denied = PermissionError(13, "Permission denied")
    monkeypatch.setattr(waiting, "bind_error", lambda address: denied)
    with pytest.raises(ConfigError, match="ports below 1024"):
        FlowerDownlink(folder(tmp_path, "server"))
