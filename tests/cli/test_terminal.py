"""What is shown while something runs."""

from __future__ import annotations

import sys

import pytest

from headwater.cli.terminal import RunProgress, status
from headwater.training.loop import Event


class Terminal:
    """Standard error that says it is a terminal and remembers what it was sent."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


EVENTS = (
    Event("start", 0, 3),
    Event("task", 1, 3, "train", 1, 4),
    Event("round", 1, 3, accuracy=0.5, seconds=1.0),
    Event("task", 2, 3, "distill", 1, 2, accuracy=0.5, seconds=1.5),
    Event("round", 2, 3, accuracy=0.5, seconds=2.0),
    Event("end", 3, 3, accuracy=0.5, seconds=2.1),
)


def test_a_terminal_sees_round_phase_tasks_and_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", screen)
    with RunProgress("fedhead", quiet=False) as watch:
        for event in EVENTS[:4]:
            watch(event)
            assert watch._bar is not None
            watch._bar.refresh()
    for words in ("round 1/3", "train 1/4", "round 2/3", "distill 1/2", "accuracy 50.0%"):
        assert words in screen.text


def test_elsewhere_a_line_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress("fedhead", quiet=False) as watch:
        for event in EVENTS:
            watch(event)
    assert capsys.readouterr().err.splitlines() == [
        "fedhead: round 1/3  accuracy 50.0%  1.0 s",
        "fedhead: round 2/3  accuracy 50.0%  2.0 s",
    ]


def test_quiet_is_quiet_but_still_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress("fedhead", quiet=True) as watch, status("reading", quiet=True):
        for event in EVENTS[:5]:
            watch(event)
    assert watch.round == 2
    assert capsys.readouterr() == ("", "")
