"""What a party has sent, one line per value or control message in state/sent.jsonl; `headwater deploy audit` sums it.

Lines are only appended. What is sent again after a restart has a second line.
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

from headwater.core.records import parse_json
from headwater.deploy.refusals import refusals

if TYPE_CHECKING:
    from headwater.deploy.folder import FoundParty, PartyFolder

FILE = "sent.jsonl"
CONTROL = "control"  # the kind of lines without payload: sizes, losses, times, names


class SentKind(NamedTuple):
    """Key of a sum: the fields that all of its lines have in common."""

    tier: str
    direction: str
    to: str
    kind: str
    what: str  # the name, for control only, since values have another name in each round


class SentSum(NamedTuple):
    """Sums over the lines of one kind, and the first and last round with such a line."""

    messages: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0


class SentLog:
    """Appends to the file. `add` returns after the line was passed to the operating system."""

    def __init__(self, folder: PartyFolder) -> None:
        self._path, self._guard = folder.state / FILE, threading.Lock()
        self.bytes: Counter[tuple[str, str]] = Counter()  # by tier and direction, over all starts of this party
        for line in lines(folder.state):
            self.bytes[str(line["tier"]), str(line["direction"])] += line["bytes"]
        cut = _cut_short(self._path)
        self._file = os.fdopen(
            os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8"
        )
        if cut:  # the process was killed while it wrote a line; the next entry must begin on a new line
            self._file.write("\n")

    def add(self, round: int, to: str, kind: str, tier: str, direction: str, bytes: int, name: str) -> None:
        """Record one value or control message.

        Args:
            to: the receiver's name, or "above".
            kind: of the value, or CONTROL.
            tier: server_sector, sector_client or relay; empty for control.
            direction: up or down.
            bytes: of payload, as the ledger counts them.
            name: of the value, or what a control message tells.
        """
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
    """The lines of the file. A line that was cut short by a kill is skipped."""
    path = state / FILE
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = parse_json(text)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("bytes"), int) and isinstance(line.get("round"), int):
                yield line | {key: str(line.get(key, "")) for key in ("tier", "direction", "to", "kind", "name")}


def sums(state: Path) -> dict[SentKind, SentSum]:
    """Sums by tier, direction, receiver and kind."""
    totals: dict[SentKind, SentSum] = {}
    for line in lines(state):
        control = line["kind"] == CONTROL
        kind = SentKind(line["tier"], line["direction"], line["to"], line["kind"], line["name"] if control else "")
        before = totals.get(kind, SentSum(first=line["round"]))
        totals[kind] = SentSum(
            before.messages + 1,
            before.bytes + line["bytes"],
            min(before.first, line["round"]),
            max(before.last, line["round"]),
        )
    return totals


def summary(party: FoundParty) -> dict[str, Any]:
    """What a party has sent, as `headwater deploy audit --json` prints it."""
    totals: dict[str, dict[str, int]] = {}
    payload: list[dict[str, Any]] = []
    control: list[dict[str, Any]] = []
    for kind, total in sorted(sums(party.state).items()):
        row = {"tier": kind.tier, "direction": kind.direction, "to": kind.to}
        counts: dict[str, Any] = {"messages": total.messages}
        rounds = {"rounds": [total.first, total.last]}
        if kind.kind == CONTROL:
            control.append(row | {"what": kind.what} | counts | rounds)
            continue
        payload.append(row | {"kind": kind.kind} | counts | {"bytes": total.bytes} | rounds)
        tier = totals.setdefault(kind.tier, {})
        tier[kind.direction] = tier.get(kind.direction, 0) + total.bytes
    summary = {"party": party.name, "role": party.role, "bytes": totals, "payload": payload, "control": control}
    return summary | {"refused": refusals(party.state)}


def _cut_short(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
