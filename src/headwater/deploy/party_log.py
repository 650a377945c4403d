"""The log of a party: lines of text or of JSON, with levels, on standard error and in state/logs/party.log."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.records import parse_json

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder

FILE = "party.log"
LEVELS = ("debug", "info", "warning", "error")  # from the least to the most important
FORMATS = ("text", "json")
LONGEST = 2000  # characters of a sentence
TAIL_BYTES = 64 << 10  # of the file that `tail` reads
REFUSALS, FAULTS = "refusals", "faults"


@dataclass(frozen=True)
class LogStyle:
    """How a party writes its log.

    Args:
        quiet: write to the file only.
        format: `text`, or `json` with one object per line.
        level: leave out lines below this level.
    """

    quiet: bool = False
    format: str = "text"
    level: str = "info"


PLAIN = LogStyle()


class PartyLog:
    """The log of a party, on standard error and in a file. Call it with one sentence per line.

    Warnings of the library's own loggers, such as about a link that ended, are written to it too.

    Args:
        folder: of the party.
        style: format, level, and whether standard error gets the lines too.
    """

    def __init__(self, folder: PartyFolder, style: LogStyle) -> None:
        place = folder.state / "logs"
        place.mkdir(mode=0o700, exist_ok=True)
        self._file = (place / FILE).open("a", encoding="utf-8")
        self._style, self._name, self._role = style, folder.name, folder.role
        self._least, self._guard = LEVELS.index(style.level), threading.Lock()
        self.counts: Counter[str] = Counter()  # refusals and faults since the start of this process
        self._handler = _Forward(self)
        logging.getLogger("headwater.deploy").addHandler(self._handler)

    def __call__(self, sentence: str, level: str = "info") -> None:
        if LEVELS.index(level) < self._least:
            return
        # Parts of it come from other parties.
        sentence = "".join(char if char.isprintable() else "?" for char in " ".join(sentence.split()))[:LONGEST]
        if self._style.format == "json":
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            fields = {"time": now, "level": level, "party": self._name, "role": self._role, "message": sentence}
            line = json.dumps(fields, ensure_ascii=False)
        else:
            mark = "" if level == "info" else f"{level.upper()} "
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {mark}{self._name}: {sentence}"
        with self._guard:
            if self._file.closed:
                return
            self._file.write(line + "\n")
            self._file.flush()
            if not self._style.quiet:
                print(line, file=sys.stderr, flush=True)

    def fault(self, sentence: str) -> None:
        """Write a warning, and count it: as a refusal if something was refused, else as a fault."""
        self.counts[REFUSALS if "refused" in sentence else FAULTS] += 1
        self(sentence, "warning")

    def close(self) -> None:
        logging.getLogger("headwater.deploy").removeHandler(self._handler)
        with self._guard:
            self._file.close()


class _Forward(logging.Handler):
    """Passes records of Python's logging to the party's log."""

    def __init__(self, log: PartyLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        self._log(record.getMessage(), level if level in LEVELS else "error")


def tail(state: Path, lines: int) -> list[dict[str, Any]]:
    """The last lines of a party's log, oldest first, each with `time`, `level` and `message`. Both formats are read.

    Args:
        state: the party's `state/`.
        lines: at most so many.
    """
    return list(deque(_parsed(state / "logs" / FILE), lines))


def _parsed(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
            cut = file.tell() > TAIL_BYTES
    except OSError:
        return
    for line in text.splitlines()[1 if cut else 0 :]:
        yield _from_json(line) if line.startswith("{") else _from_text(line)


def _from_json(line: str) -> dict[str, Any]:
    try:
        fields = parse_json(line)
        time_of = datetime.fromisoformat(str(fields["time"])).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        return {"time": time_of, "level": str(fields["level"]), "message": str(fields["message"])}
    except (ValueError, KeyError, TypeError):
        return {"time": "", "level": "info", "message": line}


def _from_text(line: str) -> dict[str, Any]:
    time_of, rest = line[:19], line[20:]
    mark = rest.partition(" ")[0].lower()
    level = mark if mark in LEVELS else "info"
    return {"time": time_of, "level": level, "message": rest.partition(": ")[2] or line}
