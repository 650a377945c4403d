"""Pause, resume and stop of a whole federation, by its server's operator."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

import chosen
from headwater.cli.app import main
from headwater.deploy import control as steering
from headwater.deploy.answering import Answering
from headwater.deploy.control import FILE, PAUSE, STOP, Control, Stopped, request, withdraw
from headwater.deploy.final_model import FinalModel, tell_end
from headwater.deploy.folder import PartyFolder
from headwater.deploy.observation import Observation
from headwater.deploy.party_log import LogStyle, PartyLog
from headwater.deploy.party_process import PartyProcess
from headwater.deploy.refusals import RefusedLog
from headwater.deploy.sent_log import SentLog
from headwater.deploy.status import Status, read
from headwater.deploy.transport import Message
from headwater.errors import ConfigError
from headwater.training.loop import train
from loopback import Loopback, LoopbackLink, small

BRIEF = {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 3}
LONG = 300.0  # seconds, on a busy machine


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("control") / "f"
    sets = ("partition.clients=2", "partition.sectors=1", "data.fraction=0.1", "partition.alpha=1.0")
    words = [word for key in sets for word in ("--set", key)]
    assert main(["deploy", "init", "fedavg", *words, "--quiet", "--rounds", "3", "--out", str(path), "--json"]) == 0
    return path


@pytest.fixture
def out(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may change."""
    monkeypatch.setattr(steering, "OFTEN", 0.01)
    return Path(shutil.copytree(whole, tmp_path / "f"))


@pytest.fixture
def running(out: Path) -> Iterator[PartyFolder]:
    """The folder of a server that runs, as far as its lock tells."""
    folder = PartyFolder.open(out / "server")
    with closing(Status(folder)):
        yield folder


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@contextmanager
def meanwhile(what: Callable[[], None]) -> Iterator[None]:
    """Run a function in a thread; it must have ended well at the end."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            what()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    yield
    thread.join(LONG)
    assert failed == []
    assert not thread.is_alive()


class TestCommands:
    def test_pause_and_resume(self, running: PartyFolder, capsys: pytest.CaptureFixture[str]) -> None:
        file = running.state / FILE
        assert main(["deploy", "pause", str(running.path)]) == 0
        assert "pauses after its current round" in capsys.readouterr().err
        assert json.loads(file.read_text())["do"] == PAUSE
        assert main(["deploy", "resume", str(running.path.parent)]) == 0, "in the directory of all folders"
        assert "carries on" in capsys.readouterr().err
        assert not file.exists()
        assert main(["deploy", "resume", str(running.path)]) == 2
        assert "neither paused nor about to stop" in capsys.readouterr().err
        assert main(["deploy", "stop", str(running.path), "--quiet"]) == 0
        assert json.loads(file.read_text())["do"] == STOP
        assert main(["deploy", "resume", str(running.path), "--quiet"]) == 0, "a stop is withdrawn, too"
        assert capsys.readouterr().err == ""

    def test_a_server_that_does_not_run(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["deploy", "stop", str(out)]) == 2
        assert "the server is not running" in capsys.readouterr().err
        assert main(["deploy", "pause", str(out)]) == 0
        assert "as soon as it is started" in capsys.readouterr().err

    def test_only_at_the_server_and_only_before_the_end(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for command in ("pause", "resume", "stop"):
            assert main(["deploy", command, str(out / "c0")]) == 2
            assert "has no folder of a server" in capsys.readouterr().err
        (out / "server/state/run").mkdir(parents=True)
        (out / "server/state/run/result.json").write_text("{}")
        for command in ("pause", "stop"):
            assert main(["deploy", command, str(out)]) == 2
            assert "has finished" in capsys.readouterr().err

    def test_only_its_owner(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Root could write the file, and the server could not read it."""
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(ConfigError, match="belongs to user"):
            request(out, PAUSE)


class TestControl:
    @pytest.mark.parametrize("spoilt", ["", "[]", "{", '{"do": "rm"}', '{"do": ["pause"]}', "\xff" * 5000])
    def test_what_is_no_request_is_ignored_with_one_sentence(self, spoilt: str, running: PartyFolder) -> None:
        said: list[str] = []
        (running.state / FILE).write_text(spoilt)
        control = Control(running, said.append)
        for _ in range(3):
            control.hold(1)
        assert len(said) == 1
        assert "is ignored" in said[0]
        withdraw(running.path)  # the way out
        control.hold(1)

    @pytest.mark.parametrize("how", ["of another user", "a link", "a pipe"])
    def test_a_file_that_the_owner_did_not_write(self, how: str, running: PartyFolder, monkeypatch: Any) -> None:
        said: list[str] = []
        request(running.path, STOP)
        if how == "of another user":
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        elif how == "a link":
            (running.state / FILE).replace(running.path / "elsewhere")
            (running.state / FILE).symlink_to(running.path / "elsewhere")
        else:
            (running.state / FILE).unlink()
            os.mkfifo(running.state / FILE)
        Control(running, said.append).hold(1)
        assert "is ignored" in said[0]

    def test_a_request_that_was_carried_out_is_removed(self, running: PartyFolder) -> None:
        control = Control(running, lambda line: None)
        request(running.path, PAUSE)
        control.clear(STOP)  # the operator has asked for something else meanwhile
        assert (running.state / FILE).exists()
        control.clear(PAUSE, STOP)
        assert not (running.state / FILE).exists()


class TestLoopback:
    """In one process: the same bits with a pause, and with a stop in between."""

    def test_paused_between_rounds(self, running: PartyFolder, tmp_path: Path) -> None:
        made, paused = small("scaffold", **BRIEF), threading.Event()
        said: list[str] = []
        control = Control(running, said.append)
        rounds: list[int] = []

        def before_round(round: int) -> None:
            if round == 2:
                request(running.path, PAUSE)
            control.hold(round, paused.set)
            rounds.append(round)

        def operator() -> None:
            assert paused.wait(LONG)
            time.sleep(0.2)
            assert rounds == [0, 1], "nothing is done meanwhile"
            before = {name: sum(link.exchanges.values()) for name, link in federation.links.items()}
            time.sleep(0.3)
            assert before == {name: sum(link.exchanges.values()) for name, link in federation.links.items()}
            withdraw(running.path)

        with closing(Loopback(made, tmp_path)) as federation, meanwhile(operator):
            run = federation.train(tmp_path / "run", before_round)
            assert federation.said == []
        assert rounds == [0, 1, 2, 3]
        assert [line.partition(" before")[0].partition(" with")[0] for line in said[1:4:2]] == ["paused", "carries on"]
        assert run.result["model_sha256"] == train(made).result["model_sha256"]

    @pytest.mark.parametrize("at", [1, *(pytest.param(at, marks=pytest.mark.thorough) for at in (0, 2, 3))])
    def test_stopped_and_started_again(self, at: int, running: PartyFolder, tmp_path: Path) -> None:
        made, control = small("scaffold", **BRIEF), Control(running, lambda line: None)

        def stopping(round: int) -> None:
            if round == at:
                request(running.path, STOP)
            control.hold(round)

        stopped = pytest.raises(Stopped, match=f"before round {max(1, at)}")
        with closing(Loopback(made, tmp_path)) as federation, stopped:
            federation.train(tmp_path / "run", stopping)
        kept = sorted(file.stem for file in (tmp_path / "run/checkpoints").glob("round-*.json"))
        assert kept[-1:] == ([f"round-{at - 1:06d}"] if at > 1 else []), "that of the last round"
        assert not (tmp_path / "run/result.json").exists()
        control.clear(STOP)
        begun: list[int] = []
        with closing(Loopback(made, tmp_path)) as federation:
            run = federation.train(tmp_path / "run", begun.append)
            assert federation.said == []
        assert begun == list(range(at if at > 1 else 0, 4)), "no finished round is repeated"
        assert run.result["model_sha256"] == train(made).result["model_sha256"]
        assert [row["round"] for row in run.history] == [1, 2, 3]


class TestEnd:
    def process(self, folder: PartyFolder) -> PartyProcess:
        log, sent = PartyLog(folder, LogStyle(quiet=True)), SentLog(folder)
        return PartyProcess(folder, log, Status(folder), sent, RefusedLog(folder), Observation(log, sent))

    @pytest.mark.parametrize("stopped", chosen.first([2, None, "soon", True], [2, "soon"]))
    def test_a_party_is_told_why_it_ends(self, stopped: Any, out: Path) -> None:
        """A word that is no number of a round counts as a usual end: no text of others gets into the log."""
        folder = PartyFolder.open(out / "c0")
        told: list[Any] = []
        head = {"do": "end", "federation": folder.federation.sha256, "stopped": stopped}

        class Above:
            def serve(self, answer: Callable[[Message], Message], stop: threading.Event) -> None:
                assert answer(Message(head)).head == {}
                assert stop.wait(LONG)

        with closing(self.process(folder)) as process:
            Answering(process, lambda head: Message({}), None, on_end=told.append).run(Above())  # type: ignore[arg-type]
        last = (folder.state / "logs/party.log").read_text().splitlines()[-1]
        if stopped == 2:
            assert "has stopped the federation before round 2, and client c0 ends; what it has is kept" in last
            assert read(folder.state)["phase"] == "stopped"
            assert told[0].round == 2
        else:
            assert "the federation has finished" in last
            assert told == [None]

    def test_a_host_passes_it_on(self, out: Path) -> None:
        heard: list[dict[str, Any]] = []

        def answer(message: Message) -> Message:
            heard.append(dict(message.head))
            return Message({})

        folder = PartyFolder.open(out / "s0")
        below = closing(LoopbackLink({"c0": answer, "c1": answer}, lambda to, message: message))
        with below as link, closing(self.process(folder)) as process:
            for stopped in (Stopped(3), None):
                tell_end(process, link, FinalModel(), frozenset, stopped)
        assert [head.get("stopped") for head in heard] == [3, 3, None, None]
