"""`headwater runs`, and `headwater compare --from`: what is there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.config import Config
from headwater.training.experiment import prepare
from headwater.training.loop import train
from headwater.training.run_lock import RunLock

Call = Callable[..., Any]


def stop(event: Any) -> None:
    if event.kind == "round":
        raise KeyboardInterrupt


@pytest.fixture
def folder(call: Call, small: tuple[str, ...], npz: Path, tmp_path: Path) -> Path:
    """One run that is finished and one that was stopped, a link, and what is no run."""
    runs = tmp_path / "runs"
    call("run", "fedavg", *small, "--rounds", 1, "--out", runs / "a")
    settings = [f"data.name={npz}", "partition.clients=4", "local.epochs=1", "engine.name=inline", "rounds=3"]
    with pytest.raises(KeyboardInterrupt):
        train(prepare(Config.load("fedprox", settings)), out=runs / "deep/b", watch=stop)
    os.utime(runs / "a/result.json", (2e9, 2e9))
    (runs / "latest").symlink_to("a")
    (runs / "notes").mkdir()
    return runs


def test_each_has_a_line_the_newest_first(call: Call, folder: Path) -> None:
    rows = json.loads(call("runs", folder, "--json").out)
    assert [(Path(row["path"]).name, row["algorithm"], row["state"]) for row in rows] == [
        ("a", "fedavg", "finished"),
        ("b", "fedprox", "stopped"),
    ]
    assert [(row["done"], row["rounds"], row["data"]) for row in rows] == [(1, 1, "small.npz"), (1, 3, "small.npz")]
    told = call("runs", folder)
    assert told.status == 0
    assert "deep/b" in told.out


def test_a_run_that_is_being_written_is_running(call: Call, folder: Path) -> None:
    with RunLock(folder / "deep/b"):
        assert json.loads(call("runs", folder / "deep", "--json").out)[0]["state"] == "running"
    lock = folder / "deep/b/run.lock"
    lock.write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "boot": "", "since": "x"}))
    (row,) = json.loads(call("runs", folder / "deep", "--json").out)  # left by a kill; the number is another process
    assert row["state"] == ("stopped" if Path("/proc/locks").exists() else "running")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("config.toml", "half = [", "not valid TOML"),
        ("result.json", "{", "not valid JSON"),
        ("config.toml", None, "holds no config.toml"),
    ],
)
def test_what_is_broken_is_named_and_hides_nothing(
    call: Call, folder: Path, name: str, text: str | None, words: str
) -> None:
    file = folder / "a" / name
    file.unlink() if text is None else file.write_text(text)
    told = call("runs", folder)
    assert (told.status, "broken" in told.out, "stopped" in told.out) == (0, True, True)
    assert words in told.out


def test_no_directory_and_no_run_are_sentences(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = call("runs")
    assert (told.status, "there is no directory runs" in told.err) == (2, True)
    assert "no run was found" in call("runs", tmp_path).out


def test_existing_runs_are_compared(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox"):
        call("run", method, *small, "--rounds", 1, "--out", tmp_path / method)
    words = ("compare", "--from", tmp_path / "fedavg", tmp_path / "fedprox", "--out", tmp_path / "both")
    rows = json.loads(call(*words, "--json").out)
    assert [row["method"] for row in rows] == ["fedavg", "fedprox"]
    assert (tmp_path / "both/report.html").exists()
    call("run", "moon", *small, "--rounds", 1, "--set", "partition.alpha=9", "--out", tmp_path / "other")
    told = call("compare", "--from", tmp_path / "fedavg", tmp_path / "other", "--out", tmp_path / "both")
    assert told.status == 2
    assert "cannot be compared: partition.alpha is 0.1 in one and 9.0 in the other" in told.err
