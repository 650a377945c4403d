"""The progress bar: in a terminal and in a notebook, nowhere else, and never in the way of a result."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.api.progress import ProgressBar, in_notebook

CODE = """
import numpy as np, headwater as hw
y = np.arange(60) % 3
class Printer(hw.Callback):
    def round_end(self, row):
        print("finished", row["round"])
data = (np.eye(3, 4)[y] * 1.0, y)
run = hw.run("fedavg", data=data, clients=3, rounds=2, local__epochs=1, callbacks=[Printer()]{more})
print(run.result["model_sha256"])
"""


def in_terminal(more: str, folder: Path) -> tuple[str, str]:
    """Standard output, and what a terminal as standard error shows."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", CODE.format(more=more)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        cwd=folder,
        env=environment,
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        os.close(ours)
        output = process.stdout.read() if process.stdout else ""
    return output, seen.decode(errors="replace")


@pytest.mark.thorough
def test_a_terminal_shows_a_bar_unless_it_is_switched_off(tmp_path: Path) -> None:
    output, seen = in_terminal("", tmp_path)
    assert "fedavg" in seen
    assert "round" in seen
    silent, nothing = in_terminal(", progress=False", tmp_path)
    assert nothing == ""
    assert output == silent
    assert output.startswith("finished 1\nfinished 2\n"), "what a callback prints stays in standard output"


def test_elsewhere_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    y = np.arange(60) % 3
    hw.run("fedavg", data=(np.eye(3, 4)[y] * 1.0, y), clients=3, rounds=1, local__epochs=1, engine="inline")
    assert capsys.readouterr() == ("", "")
    assert not in_notebook()
    assert ProgressBar(True).event is None


class Display:
    def __init__(self) -> None:
        self.shares: list[float] = []
        self.said: list[str] = []
        self.closed = False

    def show(self, title: str, share: float, detail: str, last: bool) -> None:
        self.shares.append(share)

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        self.closed = True


def test_the_bar_never_goes_back_and_ends_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    display = Display()
    monkeypatch.setattr("headwater.api.progress.in_notebook", lambda: True)
    monkeypatch.setattr("headwater.api.progress._Notebook", lambda: display)
    y = np.arange(60) % 3
    seen: list[Any] = []
    options: dict[str, Any] = {"clients": 3, "rounds": 3, "local__epochs": 1, "engine": "inline"}
    hw.run("fedavg", data=(np.eye(3, 4)[y] * 1.0, y), watch=seen.append, **options)
    assert display.shares == sorted(display.shares)
    assert display.shares[-1] == 1.0
    assert display.closed
    assert {event.kind for event in seen} == {"start", "task", "round", "end"}  # a watcher gets events too
