"""`headwater plan`: what it shows, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Call = Callable[..., Any]
KEYS = {
    "algorithm",
    "cautions",
    "clients",
    "data",
    "device",
    "engine",
    "ledger",
    "measured",
    "memory",
    "models",
    "privacy",
    "rounds",
    "seconds",
    "seed",
    "transfer",
    "stacking",
    "steps",
    "uncounted",
}


def plain(text: str) -> str:
    """Without line breaks and the spaces that numbers have in them."""
    return " ".join(text.replace("\u202f", "").split())


def test_it_shows_what_a_run_will_do(call: Call, small: tuple[str, ...]) -> None:
    told = call("plan", *small, "--rounds", 2)
    assert (told.status, told.err) == (0, "")
    for words in (
        "fedhead on ",
        "4, in 2 sectors; all of them take part in each of 2 rounds",
        "inline: as configured",
        "as it travels",
        "server – sectors",
        "8 round trips",
        "before round 1",
        "local steps",
        "distill steps at most",
        "memory about",
        "time at most about",
        "with a load of",
        "measured just now",
    ):
        assert words in plain(told.out), words


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_elsewhere(call: Call, small: tuple[str, ...]) -> None:
    """What does not depend on the device is exact; its memory is estimated, and its time is not known."""
    told = call("plan", *small, "--rounds", 2, "--device", "cuda")
    assert told.status == 0
    shown = plain(told.out)
    assert "device cuda, which this machine has not; bytes and steps are exact all the same" in shown
    assert "there for each process (training" in shown
    assert "time not known" in shown
    here, there = (
        json.loads(call("plan", *small, "--rounds", 2, "--json", "--device", device).out) for device in ("cpu", "cuda")
    )
    assert here["ledger"] == there["ledger"]
    assert here["steps"] == there["steps"]
    assert there["device"]["memory"]["total"] > 0
    assert here["device"] == {"name": "cpu", "present": True, "precision": "float32"}
    assert here["seconds"] and not there["seconds"]  # noqa: PT018
    refused = call("run", *small, "--device", "cuda")
    assert refused.status == 2
    assert "finds no such device in this machine" in refused.err


def test_its_bytes_are_those_of_the_same_run(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    words = ("fedhead+", *small, "--rounds", 2, "--seed", 3, "--json")
    planned = json.loads(call("plan", *words).out)
    made = json.loads(call("run", *words, "--out", tmp_path / "a").out)
    for tier in ("server_sector", "sector_client", "setup"):
        assert planned["ledger"][tier] == made["ledger"][tier]
    assert planned["ledger"]["exact"] is True
    assert planned["models"][0]["numbers"] == made["parameters"]
    assert planned["stacking"] == made["stacking"]


def test_it_is_written_where_it_is_asked_for(call: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    told = call("plan", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "planned")
    written = json.loads((tmp_path / "planned" / "plan.json").read_text(encoding="utf-8"))
    assert (written["algorithm"], written["rounds"]) == ("fedavg", 1)
    assert str(tmp_path / "planned" / "plan.json") in told.out


def test_json_is_one_object(call: Call, small: tuple[str, ...]) -> None:
    told = call("plan", "fedavg", *small, "--rounds", 1, "--json")
    assert told.err == ""
    facts = json.loads(told.out)
    assert set(facts) == KEYS
    assert facts["clients"] == {"registered": 4, "holding": 4, "taking_part": 4, "sectors": 2}
    assert [(each["task"], each["at"]) for each in facts["steps"]] == [("local_train", "clients")]


def test_nothing_is_written(
    call: Call, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("plan", *small, "--rounds", 1).status == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal(
    call: Call, small: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    told = call("plan", "fedmd", *small)
    assert "sectors – clients" in told.out
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", told.out).splitlines())) <= columns


def test_a_caution_is_shown_before_the_run(call: Call, small: tuple[str, ...]) -> None:
    told = call("plan", "mtgc", *small, "--set", "algorithm.z_init=zero", "--set", "partition.participation=0.5")
    assert "caution" in told.out
    assert "use 'keep'" in plain(told.out)


@pytest.mark.parametrize(
    "words",
    [
        ("fedhed",),
        ("--set", "local.learning_rate=1"),
        ("--rounds", "0"),
        ("--set", "data.name=digit"),
        ("--set", "partition.sectors=9", "--set", "partition.clients=4"),
        ("fedmd", "--set", "data.reference_size=0"),
        ("--engine", "rays"),
        ("--workers", "-1"),
    ],
)
def test_mistakes_are_refused_in_the_words_of_run(
    call: Call, npz: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    given = words if any("data.name" in word for word in words) else ("--set", f"data.name={npz}", *words)
    planned = call("plan", *given, "--quiet")
    made = call("run", *given, "--quiet", "--out", tmp_path / "a")
    assert planned.status == made.status == 2
    assert planned.out == ""
    assert planned.err == made.err
