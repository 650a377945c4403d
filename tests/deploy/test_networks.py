"""A federation whose parties are in networks of their own: links cut, slow and lossy, and addresses that change."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import networks
from federation import Federation
from headwater.config import Config
from headwater.training.experiment import prepare
from headwater.training.loop import train
from networks import DELAY, Networks
from process_tree import until

PARTIES = ("server", "s0", "s1", "c0", "c1", "c2", "c3")
LONG = 900.0  # seconds, on a busy machine
CUT = 30.0 if os.environ.get("HEADWATER_SLOW") == "1" else 5.0  # seconds
SIZE = 200_000

# Tells how many bytes came over each connection, and from where.
LISTEN = """
import socket
door = socket.create_server(("0.0.0.0", 9000))
print("ready", flush=True)
while True:
    near, (host, _) = door.accept()
    size = 0
    while data := near.recv(1 << 16):
        size += len(data)
    near.sendall(f"{size} {host}".encode())
    near.close()
"""

# Prints the answer, and how many seconds the connection took.
CONNECT = """
import socket, sys, time
begun = time.monotonic()
far = socket.create_connection((sys.argv[1], 9000), timeout=1.5)
took = time.monotonic() - begun
far.settimeout(60)
far.sendall(bytes(int(sys.argv[2])))
far.shutdown(socket.SHUT_WR)
print(far.recv(100).decode(), took)
"""


@pytest.fixture
def _may_make_networks() -> None:
    if why := networks.missing():
        pytest.skip(why)


@contextmanager
def listening(made: Networks, name: str) -> Iterator[None]:
    process = subprocess.Popen([*made.words(name), sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


def reached(made: Networks, size: int = SIZE) -> tuple[str, float] | None:
    """The address that `near` had for `far`, and the seconds to connect; None if it cannot be reached."""
    words = [*made.words("near"), sys.executable, "-c", CONNECT, made.host("far"), str(size)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90)
    if done.returncode:
        return None
    got, address, seconds = done.stdout.split()
    assert int(got) == size, "nothing is lost on the way"
    return address, float(seconds)


def interfaces() -> str:
    return Path("/proc/net/dev").read_text().replace(" ", "")


class TestMissing:
    """Where there can be no namespaces, a sentence says why."""

    def test_without_root(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(networks.os, "geteuid", lambda: 1000)
        assert networks.missing() == "a network of namespaces needs root on Linux"

    def test_without_commands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(networks.os, "geteuid", lambda: 0)
        monkeypatch.setattr(networks.shutil, "which", lambda name: None if name == "ip" else name)
        assert networks.missing() == (
            "a network of namespaces needs the commands ip: apt-get install iproute2 util-linux"
        )

    def test_without_the_right(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(networks.os, "geteuid", lambda: 0)
        monkeypatch.setattr(networks.shutil, "which", lambda name: name)
        refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")
        monkeypatch.setattr(networks.subprocess, "run", lambda *words, **options: refused)
        assert "Operation not permitted" in networks.missing()


@pytest.mark.usefixtures("_may_make_networks")
class TestFaults:
    @pytest.mark.thorough
    def test_links_are_cut_slowed_and_moved(self, tmp_path: Path) -> None:
        with Networks(["near", "far"], tmp_path) as made, listening(made, "far"):
            first = made.address["near"]
            found = reached(made)
            assert found is not None
            assert found[0] == first
            assert found[1] < DELAY
            made.slow("near", loss=0.0)
            found = reached(made, 1000)
            assert found is not None
            assert found[1] >= 2 * DELAY, "each way"
            made.mend("near")
            made.slow("near", delay=0.001, loss=0.3)
            until(lambda: reached(made), "bytes over a lossy link", 120)
            made.mend("near")
            made.cut("near")
            assert reached(made) is None
            made.mend("near")
            until(lambda: (reached(made) or ("", 1.0))[1] < DELAY, "the link to be as before", 30)
            assert made.move("near") != first
            found = reached(made)
            assert found is not None
            assert found[0] == made.address["near"] != first
            made.move("far")
            assert reached(made) is not None, "by its name"

    def test_nothing_is_left_and_the_network_of_this_machine_is_as_it_was(self, tmp_path: Path) -> None:
        before = {line.partition(":")[0] for line in interfaces().splitlines()}
        with suppress(KeyError), Networks(["near", "far"], tmp_path) as made:
            made.slow("near")
            holders = [*made._holders.values(), *made._relays.values()]
            raise KeyError
        assert len(holders) >= 3
        assert all(holder.poll() is not None for holder in holders)
        assert {line.partition(":")[0] for line in interfaces().splitlines()} == before

    def test_the_hosts_of_this_machine_are_as_they_were(self, tmp_path: Path) -> None:
        before = Path("/etc/hosts").read_bytes()
        with Networks(["near"], tmp_path) as made:
            seen = subprocess.run([*made.words("near"), "cat", "/etc/hosts"], capture_output=True, check=True).stdout
            assert made.address["near"].encode() in seen
            assert Path("/etc/hosts").read_bytes() == before


@pytest.mark.thorough
@pytest.mark.usefixtures("_may_make_networks")
@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="Flower is not installed")
def test_faults_of_the_network_do_not_change_the_result(tmp_path: Path) -> None:
    """Nobody is left out, and the model is that of the simulation, bit for bit."""
    sets = ("data.fraction=0.15", "partition.alpha=1.0", "local.epochs=1", "engine.name=inline", "deploy.quorum=1.0")
    split = ("partition.clients=4", "partition.sectors=2", "rounds=16", "algorithm.name=scaffold")
    asked = Config.load(None, [*sets, *split])
    took: dict[str, float] = {}

    with Networks(PARTIES, tmp_path) as made, Federation.init(tmp_path / "federation", asked, made) as federation:
        assert set(federation.found) == set(PARTIES)

        def through(fault: str, rounds: int = 1) -> None:
            """Wait until that many rounds were begun and finished after a fault."""
            begun, now = time.monotonic(), federation.status("server").get("round") or 0
            federation.until_round(now + rounds + 1, LONG)
            took[fault] = (time.monotonic() - begun) / rounds

        federation.start()
        wanted = train(prepare(asked)).result["model_sha256"]
        federation.until_round(1, LONG)
        through("none")
        made.slow("c0")
        through("slow")
        made.mend("c0")
        for cut in ("c1", "s0"):
            made.cut(cut)
            time.sleep(CUT)
            made.mend(cut)
            through(f"after {cut} was cut for {CUT:.0f} s")
        made.move("c2")
        through("a client's address changed")
        federation.stop("server", "s1")
        made.move("s1")
        federation.start("server", "s1")
        assert set(federation.wait(LONG).values()) == {0}
        assert federation.leftovers() == []
    print("; ".join(f"{fault}: {seconds:.1f} s a round" for fault, seconds in took.items()))
    said = [line for party in ("server", "s0", "s1") for line in federation.said(party)]
    assert [line for line in said if "left out" in line or "counts for nothing" in line] == []
    assert federation.result()["model_sha256"] == wanted
