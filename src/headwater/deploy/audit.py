"""What has left a party, a line for each thing sent: written by its process to state/sent.jsonl, added up by
`headwater deploy audit`.

Lines are only ever added. A round that was done again after a restart was sent again, and stands here twice.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder

FILE = "sent.jsonl"
CONTROL = "control"  # the kind of what is not payload: sizes, losses, times, names


class Way(NamedTuple):
    """What lines that are added up together have in common."""

    tier: str
    direction: str
    to: str
    kind: str
    what: str  # the name, of control only: values have a name for each round


class Sum(NamedTuple):
    messages: int = 0
    bytes: int = 0
    first: int = 0  # round
    last: int = 0


class Sent:
    def __init__(self, folder: PartyFolder) -> None:
        self._path, self._guard = folder.state / FILE, threading.Lock()
        self.bytes: Counter[tuple[str, str]] = Counter()  # tier, direction; of all starts of this party
        for line in lines(folder.state):
            self.bytes[str(line["tier"]), str(line["direction"])] += line["bytes"]
        cut = _cut_short(self._path)
        self._file = os.fdopen(
            os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8"
        )
        if cut:  # by a kill: the next line must not become part of it
            self._file.write("\n")

    def add(self, round: int, to: str, kind: str, tier: str, direction: str, bytes: int, name: str) -> None:
        """One thing that was sent. `tier` is server_sector, sector_client or relay, `direction` up or down."""
        line = {
            "time": time.time_ns() // 1_000_000 / 1000,
            "round": round,
            "to": to,
            "kind": kind,
            "tier": tier,
            "direction": direction,
            "bytes": bytes,
            "name": name,
        }
        with self._guard:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            self.bytes[tier, direction] += bytes

    def close(self) -> None:
        with self._guard:
            self._file.close()


def lines(state: Path) -> Iterator[dict[str, Any]]:
    """What was written; a line cut short by a kill is left out."""
    path = state / FILE
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("bytes"), int) and isinstance(line.get("round"), int):
                yield {"tier": "", "direction": "", "to": "", "kind": "", "name": ""} | line


def sums(state: Path) -> dict[Way, Sum]:
    """Added up by tier, direction, receiver and kind."""
    found: dict[Way, Sum] = {}
    for line in lines(state):
        control = line["kind"] == CONTROL
        way = Way(line["tier"], line["direction"], line["to"], line["kind"], line["name"] if control else "")
        before = found.get(way, Sum(first=line["round"]))
        found[way] = Sum(
            before.messages + 1,
            before.bytes + line["bytes"],
            min(before.first, line["round"]),
            max(before.last, line["round"]),
        )
    return found


def _cut_short(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
