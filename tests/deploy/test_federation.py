"""A federation of real processes on loopback, with certificates and keys: the same bits and bytes as the simulation,
and what happens when some of them are killed."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("Flower is not installed: pip install 'headwater[flower]'", allow_module_level=True)

from federation import Federation, charged
from headwater.config import Config
from headwater.core.membership import Newcomer
from headwater.deploy import sent_log
from headwater.deploy.adding import add
from headwater.deploy.control import PAUSE, STOP, request, withdraw
from headwater.training.experiment import prepare
from headwater.training.loop import train
from headwater.training.opening import Arrivals

TINY = ("data.fraction=0.15", "partition.alpha=1.0", "partition.sectors=2", "local.epochs=1", "engine.name=inline")
SIX = ("partition.clients=6", "data.fraction=0.3")
LONG = 900.0  # seconds, on a busy machine

slow = pytest.mark.skipif(
    os.environ.get("HEADWATER_SLOW") != "1", reason="takes minutes: set HEADWATER_SLOW=1 to run this test"
)


def config(*sets: str) -> Config:
    return Config.load(None, [*TINY, *sets])


def simulated(asked: Config) -> str:
    return str(train(prepare(asked)).result["model_sha256"])


@contextmanager
def started(place: Path, asked: Config) -> Iterator[Federation]:
    """Start all parties and wait for their end; no process may be left."""
    with Federation.init(place, asked) as federation:
        federation.start()
        yield federation
        assert set(federation.wait(LONG).values()) == {0}
        assert federation.leftovers() == []


def same_bytes(federation: Federation) -> None:
    """The bytes that all parties recorded are those of the ledger."""
    due, sent = charged(federation.result()), federation.sent()
    assert {way: sent[way] for way in due} == due
    assert min(due.values()) > 0


def told(federation: Federation, party: str, about: str, *words: str) -> list[str]:
    """Log lines of a party about the loss of another one that contain these words."""
    found = [line for line in federation.said(party) if line.startswith("round ") and f" {about} " in line]
    return [line for line in found if all(word in line for word in words)]


def missed(federation: Federation, party: str, about: str) -> list[int]:
    """The rounds that another party was left out of, from the log of a party."""
    lines = told(federation, party, about, "left out of this round")
    return [int(line.split(":")[0].removeprefix("round ")) for line in lines]


def sent(federation: Federation, party: str, round: int, **like: Any) -> list[dict[str, Any]]:
    """The models that a party sent in a round."""
    lines = sent_log.lines(federation.found[party].state)
    alike = {"round": round, "kind": "model"} | like
    return [line for line in lines if all(line[key] == value for key, value in alike.items())]


def busy(federation: Federation, party: str, phase: str, round: int) -> None:
    """Wait until a party is in a phase of a round."""

    def so() -> bool:
        now = federation.status(party)
        return now.get("phase") == phase and (now.get("round") or 0) >= round

    federation.until(so, f"{party} to be {phase} in round {round}", LONG)


def sizes(federation: Federation) -> dict[str, int]:
    begun = json.loads((federation.found["server"].state / "begun.json").read_text())
    found: dict[str, int] = begun["sizes"]
    return found


def teams(federation: Federation) -> dict[str, list[str]]:
    described = json.loads((federation.found["server"].path / "federation.json").read_text())
    found: dict[str, list[str]] = described["sectors"]
    return found


@pytest.mark.thorough
def test_processes_give_the_bits_of_the_simulation_and_the_bytes_of_the_ledger(tmp_path: Path) -> None:
    asked = config("partition.clients=3", "rounds=2", "algorithm.name=fedhead")
    with started(tmp_path / "federation", asked) as federation:
        for party in federation.found.values():
            assert "insecure = false" in (party.path / "party.toml").read_text()
        wanted = simulated(asked)
    assert federation.result()["model_sha256"] == wanted
    same_bytes(federation)


@slow
def test_secure_sums_give_the_bits_of_the_simulation(tmp_path: Path) -> None:
    cohorts = ("algorithm.cohorts=2", "privacy.secure=server")
    asked = config(*SIX, "algorithm.name=fedeed", *cohorts, "rounds=2")
    with started(tmp_path / "federation", asked) as federation:
        pass
    assert federation.result()["model_sha256"] == simulated(asked)
    same_bytes(federation)


@slow
@pytest.mark.parametrize("method", ["fedavg", "fedhead+", "mtgc", "fedeed", "fedhkd"])
def test_methods_give_the_bits_of_the_simulation(method: str, tmp_path: Path) -> None:
    asked = config(*SIX, "rounds=2", f"algorithm.name={method}", "deploy.secret_noise=false")
    with started(tmp_path / "federation", asked) as federation:
        wanted = simulated(asked)
    assert federation.result()["model_sha256"] == wanted
    same_bytes(federation)


@slow
class TestLoss:
    """The run goes on without a lost party, keeps the work of the others, and logs one line about it."""

    def test_a_client_that_is_late_is_left_out_and_comes_back(self, tmp_path: Path) -> None:
        """It does not answer, although it is still connected. Afterwards it gets the current model."""
        asked = config(*SIX, "rounds=5", "algorithm.name=fedavg", "deploy.deadline=25")
        with started(tmp_path / "federation", asked) as federation:
            federation.until_round(2)
            late = teams(federation)["s0"][0]
            federation.freeze(late)
            federation.until(lambda: told(federation, "s0", late), "a word about who is late", LONG)
            federation.thaw(late)
        (line,) = told(federation, "s0", late)
        (lost,) = missed(federation, "s0", late)
        assert line == f"round {lost}: {late} did not answer within 25 s and is left out of this round"
        assert sent(federation, "s0", lost, to=late)
        for round in range(1, 6):  # sent.jsonl has the late reply under its own round
            assert bool(sent(federation, "s0", round, direction="up"))
        assert sent(federation, "s0", lost + 1, to=late)
        assert sent(federation, late, lost + 1)
        assert federation.result()["rounds"] == 5

    def test_a_client_that_is_absent_at_the_end_is_told_when_it_comes_back(self, tmp_path: Path) -> None:
        asked = config(*SIX, "rounds=3", "algorithm.name=fedavg", "deploy.deadline=25")
        with started(tmp_path / "federation", asked) as federation:
            federation.until_round(2)
            late = teams(federation)["s0"][0]
            federation.kill(late)
            federation.until_round(3)
            federation.until(lambda: not federation.running("server"), "the server to end", LONG)
            federation.start(late)
        assert federation.said(late)[-1] == f"the federation has finished, and client {late} ends"
        assert [line for line in federation.said("s0") if f"for {late} to hear" in line]

    def test_leaders_that_are_killed_are_replaced(self, tmp_path: Path) -> None:
        """One while it trains, before distillation; the other one while it distils. Both come back later."""
        lasting = ("local.epochs=200", "sector.epochs=200", "sector.patience=200")
        asked = config(*SIX, "rounds=6", "algorithm.name=fedhead", "algorithm.leader=fixed", *lasting)
        with started(tmp_path / "federation", asked) as federation:
            federation.until_round(1, LONG)
            size = sizes(federation)
            leader = {sector: max(team, key=lambda c: size[c]) for sector, team in teams(federation).items()}
            busy(federation, leader["s0"], "training", 2)
            federation.kill(leader["s0"])
            federation.start(leader["s0"])
            busy(federation, leader["s1"], "distilling", 2)
            federation.kill(leader["s1"])
            federation.start(leader["s1"])
        for sector, lost in leader.items():
            rounds = missed(federation, sector, lost)
            assert rounds
            assert rounds == list(range(2, 2 + len(rounds))), "one line for each round that it missed"
            assert len(sent(federation, sector, 2, to="above")) == 2, "its mean, and the model that was distilled"
            assert sent(federation, lost, 6), "it is back"
        assert federation.result()["rounds"] == 6

    def test_a_sector_whose_host_is_killed_is_skipped_and_rejoins(self, tmp_path: Path) -> None:
        asked = config(*SIX, "rounds=12", "algorithm.name=mtgc", "algorithm.leader=none", "local.epochs=10")
        with started(tmp_path / "federation", asked) as federation:
            busy(federation, "s1", "training", 2)
            federation.kill("s1")
            federation.until(lambda: told(federation, "server", "s1"), "a word about the host", LONG)
            federation.start("s1")
        rounds = missed(federation, "server", "s1")
        assert rounds == list(range(2, 2 + len(rounds))), "one line for each round that it missed"
        assert len(rounds) < 11
        assert sent(federation, "s1", 12, to="above"), "it is back"
        for client in teams(federation)["s1"]:
            assert sent(federation, client, 12)
        assert federation.result()["rounds"] == 12

    def test_restarted_parties_continue(self, tmp_path: Path) -> None:
        """The server is killed in a round; while it is away a client and a host are killed too, and come back. What
        they keep is on their disks, so the end is that of an undisturbed run."""
        asked = config(
            *SIX, "rounds=4", "algorithm.name=scaffold", "local.epochs=20", "deploy.quorum=1.0", "deploy.deadline=300"
        )
        with started(tmp_path / "federation", asked) as federation:
            wanted = simulated(asked)
            federation.until_round(3, LONG)
            federation.kill("server")
            federation.kill("c0")
            federation.kill("s1")
            federation.start("c0", "s1")
            federation.until_joined("c0")
            federation.start("server")
        assert federation.result()["model_sha256"] == wanted
        assert len([line for line in federation.said("server") if "started again" in line]) == 1
        assert [line for line in federation.said("server") if "left out" in line] == []


class Forwarder:
    """A TCP proxy between two parties that counts the bytes in both directions."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.bytes = {"up": 0, "down": 0}
        self._target, self._lock = target, threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._run(self._welcome)

    def _run(self, what: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=what, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _welcome(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:  # closed
                return
            self._run(self._join, near)

    def _join(self, near: socket.socket) -> None:
        with near:
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the link is not up yet
                return
            with far:
                back = self._run(self._pass, far, near, "down")
                self._pass(near, far, "up")
                back.join()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self.bytes[way] += len(data)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # ends the wait in `accept`
        self._door.close()
        for thread in self._threads:
            thread.join(10)


@slow
def test_no_client_model_crosses_the_link_of_the_server(tmp_path: Path) -> None:
    """By size: a sector of three clients sends up two models per round, the mean and the distilled one, not three."""
    rounds = 3
    asked = config(*SIX, f"rounds={rounds}", "algorithm.name=fedhead", "model.name=mlp", "model.hidden=[400, 500]")
    federation = Federation.init(tmp_path / "federation", asked)
    file = federation.found["s0"].path / "party.toml"
    party = file.read_text()
    above = party.partition("[above]")[2].partition('address = "')[2].partition('"')[0]
    host, _, port = above.rpartition(":")
    between = Forwarder((host, int(port)))
    file.write_text(party.replace(above, between.address))
    try:
        with federation:
            federation.start()
            assert set(federation.wait(LONG).values()) == {0}
    finally:
        between.close()
    (model,) = {line["bytes"] for line in sent(federation, "s0", 1, to="above")}
    assert model > 900_000
    assert len(teams(federation)["s0"]) == 3
    for passed in between.bytes.values():  # Flower does not send a model again that the other side has
        assert rounds * model < passed < (2 * rounds + 1) * model * 1.2


@pytest.mark.thorough
def test_a_client_that_comes_after_round_1_takes_part(tmp_path: Path) -> None:
    """With the bits of a simulation of the same arrivals. Its command is `join`, and everybody says when it joins."""
    asked = config("partition.sectors=1", "partition.clients=3", "rounds=4", "algorithm.name=fedavg", "deploy.start=20")
    with Federation.init(tmp_path / "federation", asked) as federation:
        late = teams(federation)["s0"][0]
        federation.start(*(name for name in federation.names() if name != late))
        federation.until_round(1, LONG)
        request(federation.found["server"].path, PAUSE)
        federation.until(lambda: federation.status("server").get("phase") == "paused", "the pause", LONG)
        assert late not in sizes(federation)
        federation.found[late] = federation.found[late]._replace(role="join")
        federation.start(late)
        federation.until(lambda: late in federation.status("s0").get("present", ()), "the late client", LONG)
        withdraw(federation.found["server"].path)
        assert set(federation.wait(LONG).values()) == {0}
        assert federation.leftovers() == []
    made, joined = prepare(asked), [Newcomer(**each) for each in federation.result()["joined"]]
    assert late in [each.client for each in joined]
    (first,) = [each.round for each in joined if each.client == late]
    assert 1 < first <= 4
    absent = dict.fromkeys((each.client for each in joined), 0)
    run = train(replace(made, tree=made.tree.with_sizes(absent)), arrivals=Arrivals(joined))
    assert federation.result()["model_sha256"] == run.result["model_sha256"]
    same_bytes(federation)
    assert f"client {late} came late and takes part from round {first} on" in federation.said(late)
    told = f"{late} came late with {made.tree.sizes[late]} rows and takes part from round {first} on"
    assert told in federation.said("server")
    for party in ("server", late):
        assert federation.status(party)["late"][late] == f"from round {first} on"


@pytest.mark.thorough
def test_a_client_that_is_added_takes_part_in_the_same_run(tmp_path: Path) -> None:
    """Only the server and the host are amended by hand: all others take it over from the first message they get."""
    out = tmp_path / "federation"
    asked = config("partition.clients=2", "rounds=5", "algorithm.name=fedhead", "deploy.start=900")
    with Federation.init(out, asked) as federation:
        federation.start()
        federation.until_round(1, LONG)
        request(out / "server", STOP)
        assert set(federation.wait(LONG).values()) == {0}
        before = json.loads((out / "server/state/run/rounds.jsonl").read_text().splitlines()[-1])["round"]
    added = add(out / "server", "c2", "s1")
    assert add(out / "s1", "c2", "s1", out / "c2/keys/node.pub").sha256 == added.sha256
    (out / "c2/data.npz").write_bytes((out / "c0/data.npz").read_bytes())
    with Federation(out) as federation:
        federation.start()
        assert set(federation.wait(LONG).values()) == {0}
        assert federation.leftovers() == []
        result = federation.result()
    assert [each["client"] for each in result["joined"]] == ["c2"]
    assert result["joined"][0]["round"] > before
    assert result["rounds"] == 5
    agreed = (out / "server/federation.json").read_bytes()
    for party in federation.names():
        assert (out / party / "federation.json").read_bytes() == agreed
        assert not [line for line in federation.said(party) if "left out" in line or "refused" in line]
    assert any("c2 was added to s1, with the key SHA256:" in line for line in federation.said("c0"))
    assert (out / "c2/model.safetensors").exists()
