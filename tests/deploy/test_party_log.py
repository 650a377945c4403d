"""The log of a party: formats, levels, counts, and reading its end."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from headwater.deploy.party_log import LONGEST, LogStyle, PartyLog, tail


class Folder:
    name, role = "c0", "client"

    def __init__(self, path: Path) -> None:
        self.state = path


def written(path: Path, style: LogStyle) -> PartyLog:
    folder: Any = Folder(path)
    log = PartyLog(folder, style)
    log("asked c1", "debug")
    log("two\nlines\x1b[31m of \u202e one")
    log.fault("c1 sent a reply that is refused: é")
    log.fault("c2 did not answer")
    logging.getLogger("headwater.deploy").warning("the link %s", "ended")
    log("it is over", "error")
    log.close()
    logging.getLogger("headwater.deploy").debug("nobody hears this")
    return log


def test_lines_of_json_have_level_party_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, LogStyle(format="json"))
    rows = [json.loads(line) for line in (tmp_path / "logs" / "party.log").read_text().splitlines()]
    assert [row["level"] for row in rows] == ["info", "warning", "warning", "warning", "error"]
    assert rows[0] | {"time": ""} == {
        "time": "",
        "level": "info",
        "party": "c0",
        "role": "client",
        "message": "two lines?[31m of ? one",
    }
    assert rows[3]["message"] == "the link ended"
    assert rows[0]["time"].endswith("+00:00")
    assert log.counts == {"refusals": 1, "faults": 1}
    assert [json.loads(line) for line in capsys.readouterr().err.splitlines()] == rows


def test_endless_sentences_are_cut(tmp_path: Path) -> None:
    for format in ("text", "json"):
        (tmp_path / format).mkdir()
        folder: Any = Folder(tmp_path / format)
        log = PartyLog(folder, LogStyle(quiet=True, format=format))
        log("y" * 10**6)
        log.close()
        assert tail(tmp_path / format, 1)[0]["message"] == "y" * LONGEST


def test_both_formats_are_read_back_and_levels_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    written(tmp_path / "a", LogStyle(quiet=True, level="debug"))
    assert capsys.readouterr().err == ""
    (tmp_path / "b").mkdir()
    written(tmp_path / "b", LogStyle(quiet=True, format="json", level="debug"))
    texts, objects = tail(tmp_path / "a", 100), tail(tmp_path / "b", 100)
    assert [(row["level"], row["message"]) for row in texts] == [(row["level"], row["message"]) for row in objects]
    assert [row["level"] for row in texts] == ["debug", "info", "warning", "warning", "warning", "error"]
    assert len(tail(tmp_path / "a", 2)) == 2
    (tmp_path / "c").mkdir()
    written(tmp_path / "c", LogStyle(quiet=True, level="error"))
    assert [row["message"] for row in tail(tmp_path / "c", 9)] == ["it is over"]
    (tmp_path / "c" / "logs" / "party.log").write_bytes(b"\xff{\n{\n\n" + b"x" * 100_000 + b"\nlast\n")
    assert tail(tmp_path / "c", 1)[0]["message"] == "last"
    assert tail(tmp_path / "nowhere", 5) == []
