"""What the folders on this machine tell about a federation: a tree of all parties, with the state of each as far as it
is known here.

Only files are read, so a party sees itself and the parties directly below it; the server also knows from its time line
when a client's work last came. What other parties wrote is taken as text and as numbers, never as anything else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.records import parse_json, parse_toml
from headwater.deploy import party_log, status
from headwater.deploy.folder import FEDERATION, FoundParty, find, natural_order
from headwater.report.numbers import number

LINES = 40  # of each party's log
TAIL_BYTES = 256 << 10  # of a file with a line per round or task
LONGEST = 400  # characters of a text

RUNNING, WAITING, AWAY, ENDED, DONE, UNKNOWN = "running", "waiting", "away", "ended", "done", "unknown"


@dataclass(frozen=True)
class NodeRow:
    """A party in the tree.

    Args:
        name: of the party.
        alias: what the data calls it; often empty.
        role: server, sector or client.
        depth: 0 for the server.
        state: one of the words above, which chooses the colour.
        says: the state in words.
        last: when it last answered or worked, as `time.time`; None if not known.
        detail: what it does or did.
        here: whether its folder is among those that were read.
    """

    name: str
    alias: str
    role: str
    depth: int
    state: str
    says: str
    last: float | None
    detail: str
    here: bool


@dataclass(frozen=True)
class Overview:
    """All that the page shows.

    Args:
        title: method and data.
        now: when it was read.
        round: the current round, of `rounds`.
        accuracy: the last known.
        curve: round and accuracy, if the server's folder is among those that were read.
        nodes: the tree in the order in which it is shown.
        stuck: a sentence for each party that keeps others waiting.
        visitors: a sentence for each stranger or twin at a link.
        sent: bytes by party, tier and direction.
        refusals: by party, since its start.
        faults: likewise.
        logs: the last lines of each party's log.
    """

    title: str
    now: float
    round: int
    rounds: int
    accuracy: float | None
    curve: tuple[tuple[int, float], ...]
    nodes: tuple[NodeRow, ...]
    stuck: tuple[str, ...]
    visitors: tuple[str, ...]
    sent: Mapping[str, Mapping[str, Mapping[str, int]]]
    refusals: Mapping[str, int]
    faults: Mapping[str, int]
    logs: Mapping[str, Sequence[Mapping[str, Any]]]


def read(directory: Path) -> Overview:
    """Read a party's folder, or a directory of several."""
    parties, now = find(directory), time.time()
    rows = {party.name: row for party, row in zip(parties, status.rows(parties), strict=True)}
    agreed = _agreed(parties[0].path)
    server = next((party for party in parties if party.role == "server"), None)
    first = rows[(server or parties[0]).name]
    return Overview(
        title=_title(agreed),
        now=now,
        round=max((_whole(row["round"]) for row in rows.values()), default=0),
        rounds=_whole(first["rounds"]),
        accuracy=number(first["accuracy"]),
        curve=tuple(_curve(server)) if server else (),
        nodes=tuple(_nodes(agreed, rows, _last_work(server) if server else {}, now)),
        stuck=tuple(_stuck(rows, now)),
        visitors=tuple(_visitors(rows)),
        sent={name: _sent(row) for name, row in rows.items()},
        refusals={name: _whole(row["refusals"]) for name, row in rows.items()},
        faults={name: _whole(row["faults"]) for name, row in rows.items()},
        logs={party.name: [_line(line) for line in party_log.tail(party.state, LINES)] for party in parties},
    )


def text(value: Any) -> str:
    """A text of another party: at most so long, and without characters that change how others are shown."""
    clean = "".join(char if char.isprintable() else "?" for char in str(value)[: LONGEST + 1])
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}…"


def _line(line: Mapping[str, Any]) -> dict[str, str]:
    return {key: text(value) for key, value in line.items()}


def ago(seconds: float) -> str:
    """A duration in one unit, for a page that is renewed every other second."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


# -- the tree


def _nodes(
    agreed: Mapping[str, Any], rows: Mapping[str, dict[str, Any]], work: Mapping[str, tuple[float, str]], now: float
) -> Iterator[NodeRow]:
    names = agreed.get("names")
    aliases = names if isinstance(names, dict) else {}

    def node(name: str, role: str, depth: int, above: str) -> NodeRow:
        seen = _own(rows[name], now) if name in rows else _from_above(name, rows.get(above, {}), work.get(name), now)
        return NodeRow(name, text(aliases.get(name, "")), role, depth, *seen, here=name in rows)

    yield node("server", "server", 0, "")
    sectors = agreed.get("sectors")
    for sector, clients in sectors.items() if isinstance(sectors, dict) else ():
        yield node(text(sector), "sector", 1, "server")
        for client in sorted(map(text, clients), key=natural_order):
            yield node(client, "client", 2, text(sector))


def _own(row: dict[str, Any], now: float) -> tuple[str, str, float | None, str]:
    """State, words, time and detail of a party whose folder is here."""
    last, phase, up = number(row["updated"]), text(row["phase"] or ""), row["up"]
    at = f"round {_whole(row['round'])}" if _whole(row["round"]) else ""
    if last is None:
        return UNKNOWN, "not started yet", None, ""
    if phase == "finished":
        return DONE, "finished", last, at
    if not up:
        return ENDED, "not running", last, ", ".join(filter(None, (f"was {phase}", at)))
    waits = phase.startswith("waiting")
    return (WAITING if waits else RUNNING), phase, last, at


def _from_above(
    name: str, above: dict[str, Any], work: tuple[float, str] | None, now: float
) -> tuple[str, str, float | None, str]:
    """The same of a party elsewhere, as the party above it or the server sees it."""
    below = above.get("below")
    member = below.get(name) if isinstance(below, dict) else None
    if not isinstance(member, dict) or not above.get("up"):
        return (UNKNOWN, "not known here", None, "") if work is None else (UNKNOWN, "known by its work", *work)
    last, asked, until = (number(member.get(key)) for key in ("answered", "asked", "until"))
    if member.get("revoked"):
        return ENDED, "revoked", last, ""
    if not member.get("connected"):
        since = number(member.get("since"))
        return AWAY, "not connected" if since is None else f"not connected for {ago(now - since)}", last, ""
    if asked is None:
        return RUNNING, "connected", last, ""
    return WAITING, f"at work for {ago(now - asked)}", last, f"{text(member.get('what', ''))}{_until(until)}"


def _until(until: float | None) -> str:
    return "" if until is None else f", awaited until {time.strftime('%H:%M:%S', time.localtime(until))}"


# -- who is stuck, and who should not be there


def _stuck(rows: Mapping[str, dict[str, Any]], now: float) -> Iterator[str]:
    for name, row in rows.items():
        if not row["up"]:
            continue
        awaited = row["awaited"] if isinstance(row["awaited"], dict) else {}
        if names := [text(each) for each in awaited.get("names") or ()]:
            since, until = number(awaited.get("since")), number(awaited.get("until"))
            long = "" if since is None else f", for {ago(now - since)}"
            yield f"{name} waits for {', '.join(names)} to come{long}{_until(until)}."
        below = row["below"] if isinstance(row["below"], dict) else {}
        for member, fields in below.items():
            asked, until = number(fields.get("asked")), number(fields.get("until"))
            what = text(fields.get("what", ""))
            if asked is not None:
                yield f"{name} has had no answer from {text(member)} for {ago(now - asked)} ({what}){_until(until)}."
            elif not (
                fields.get("connected") or fields.get("revoked") or member in names or row["phase"] == "finished"
            ):
                since = number(fields.get("since"))
                long = "" if since is None else f" for {ago(now - since)}"
                yield f"{text(member)} has not been connected to {name}{long}."
        above = row["above"] if isinstance(row["above"], dict) else {}
        if above.get("running") is False:
            yield f"{name} cannot join the party above it; its log says why."


def _visitors(rows: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for name, row in rows.items():
        for visitor in row["visitors"] if isinstance(row["visitors"], list) else ():
            last = number(visitor.get("last"))
            when = "" if last is None else f", last at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(last))}"
            who = f"a second {text(visitor['name'])}" if visitor.get("name") else "a stranger"
            times = _whole(visitor.get("attempts"))
            yield f"{who} was refused at the link of {name} ({times} ×{when}), key {text(visitor.get('key', ''))}."
        if others := _whole(row["other_visitors"]):
            yield f"further strangers were refused at the link of {name} ({others} ×)."


# -- files


def _agreed(folder: Path) -> dict[str, Any]:
    try:
        fields = parse_json((folder / FEDERATION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _title(agreed: Mapping[str, Any]) -> str:
    try:
        config = parse_toml(str(agreed["config"]))
        return f"{text(config['algorithm']['name'])} on {text(config['data']['name'])}"
    except (KeyError, TypeError, ValueError):
        return "A federation"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The last JSON objects of a file; lines that are cut are left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            content = file.read(TAIL_BYTES)
    except OSError:
        return
    for line in content.splitlines():
        try:
            fields = parse_json(line)
        except ValueError:
            continue
        if isinstance(fields, dict):
            yield fields


def _curve(server: FoundParty) -> Iterator[tuple[int, float]]:
    for row in _lines(server.state / "run" / "rounds.jsonl"):
        accuracy = number(row.get("accuracy"))
        if accuracy is not None:
            yield _whole(row.get("round")), accuracy


def _last_work(server: FoundParty) -> dict[str, tuple[float, str]]:
    """By client, about when its last recorded task ended, and which it was. Tasks are recorded once a round."""
    found: dict[str, tuple[float, str]] = {}
    path = server.state / "run" / "timeline.jsonl"
    written = path.stat().st_mtime if path.exists() else 0.0
    rows = list(_lines(path))
    latest = max((number(row.get("end")) or 0.0 for row in rows), default=0.0)
    for row in rows:  # times in the file are since the start of the run; the latest is taken for that of the file
        end = number(row.get("end")) or 0.0
        what = f"{text(row.get('task', ''))} in round {_whole(row.get('round'))}"
        found[text(row.get("node", ""))] = (written - (latest - end), what)
    return found


def _sent(row: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    sent = row["sent"] if isinstance(row["sent"], dict) else {}
    return {
        text(tier): {text(way): _whole(total) for way, total in ways.items()}
        for tier, ways in sent.items()
        if isinstance(ways, dict)
    }


def _whole(value: Any) -> int:
    found = number(value)
    return 0 if found is None else int(found)
