"""One process at a time writes to a run's directory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toys
from headwater.cli.app import main
from headwater.errors import OutputError
from headwater.training import run_lock
from headwater.training.loop import Event, train
from headwater.training.run_lock import LOCK, RunLock

HOLDER = """
import sys, time
from pathlib import Path
from headwater.training.run_lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock of `tmp_path`."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


def foreign(tmp_path: Path) -> None:
    row = {"pid": 7, "host": "elsewhere", "boot": "another", "since": "2026-01-02 03:04:05"}
    (tmp_path / LOCK).write_text(json.dumps(row))


def test_a_second_process_is_told_who_holds_it(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    try:
        with pytest.raises(OutputError, match=rf"process {holder.pid} on {socket.gethostname()} \(since 20"):
            train(toys.tiny("fedavg", rounds=1), out=tmp_path)
        assert not (tmp_path / "rounds.jsonl").exists()
        with pytest.raises(OutputError, match=f"process {holder.pid}"):  # never from a process that runs
            RunLock(tmp_path, force=True).__enter__()
    finally:
        end(holder)


def test_a_killed_holder_is_replaced_at_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    end(holder)
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == holder.pid
    with RunLock(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK).exists()


def test_a_number_that_another_process_got_later_does_not_matter(tmp_path: Path) -> None:
    """The named process is alive, but does not hold the lock: it got the number of a holder that was killed."""
    row = {"pid": os.getppid(), "host": socket.gethostname(), "boot": "", "since": "2026-01-02 03:04:05"}
    (tmp_path / LOCK).write_text(json.dumps(row))
    with RunLock(tmp_path):
        pass


def test_where_files_cannot_be_locked_the_number_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_flock", lambda file: None)
    with RunLock(tmp_path), pytest.raises(OutputError, match=f"process {os.getpid()}"):
        RunLock(tmp_path).__enter__()
    row = {"pid": 2**22 + 1, "host": socket.gethostname(), "boot": "", "since": "2026-01-02 03:04:05"}
    (tmp_path / LOCK).write_text(json.dumps(row))
    with RunLock(tmp_path):
        pass


def test_two_runs_at_once_write_every_row_once(tmp_path: Path) -> None:
    made = toys.tiny("fedavg", rounds=2)
    refused: list[str] = []

    def second(event: Event) -> None:
        if event.kind == "round" and event.round == 1:
            with pytest.raises(OutputError) as found:
                train(made, out=tmp_path / "run")
            refused.append(str(found.value))

    train(made, out=tmp_path / "run", watch=second)
    assert [f"process {os.getpid()} on" in sentence for sentence in refused] == [True]
    rows = (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [1, 2]
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_lock_of_another_machine_needs_force(tmp_path: Path) -> None:
    foreign(tmp_path)
    with pytest.raises(OutputError, match=r"process 7 on elsewhere.*cannot be checked.*resume .* --force"):
        RunLock(tmp_path).__enter__()
    assert (tmp_path / LOCK).exists()
    with RunLock(tmp_path, force=True):
        pass
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"pid": 1}'])
def test_a_lock_that_names_nobody_is_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK).write_bytes(content)
    with RunLock(tmp_path):
        pass


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`run` and `resume` end with 2 and a sentence; `--force` helps with a lock of another machine, and only there."""
    sets = ["partition.clients=2", "partition.sectors=1", "local.epochs=1", "data.fraction=0.1", "engine.name=inline"]
    out = tmp_path / "run"
    words = ["run", "fedavg", *(word for pair in sets for word in ("--set", pair)), "--rounds", "1", "--quiet"]
    assert main([*words, "--out", str(out)]) == 0
    (out / "result.json").unlink()
    with RunLock(out):
        for command in (words, ["resume", str(out), "--quiet"], [*words, "--force"], ["resume", str(out), "--force"]):
            capsys.readouterr()
            assert main([*command, "--out", str(out)] if command[0] == "run" else command) == 2
            assert f"process {os.getpid()} on" in capsys.readouterr().err
    assert (out / "rounds.jsonl").exists()
    foreign(out)
    assert main(["resume", str(out), "--quiet"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["resume", str(out), "--quiet", "--force"]) == 0
    assert (out / "result.json").exists()


def test_waiting_for_the_file_of_a_holder_that_ends(tmp_path: Path) -> None:
    """Many processes in turn: the file is removed and made again, and each of them holds the lock alone."""
    script = """
import sys, time
from pathlib import Path
from headwater.errors import OutputError
from headwater.training.run_lock import RunLock
folder, done = Path(sys.argv[1]), 0
until = time.monotonic() + 30
while done < 20 and time.monotonic() < until:
    try:
        with RunLock(folder):
            alone = folder / "alone"
            alone.touch(exist_ok=False)
            time.sleep(0.001)
            alone.unlink()
            done += 1
    except OutputError:
        time.sleep(0.001)
assert done == 20
"""
    began = time.monotonic()
    processes = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert time.monotonic() - began < 60
