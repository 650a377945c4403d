"""Tables and lines that `headwater deploy` prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headwater.cli.run import TIERS
from headwater.cli.terminal import table
from headwater.deploy.folder import listed
from headwater.report.numbers import count, duration, number, percent, size

if TYPE_CHECKING:
    from rich.table import Table

    from headwater.deploy.init import WrittenFederation

SHOWN = 4  # names in one cell
LINKS = TIERS | {"relay": "relayed inside a sector", "final": "final model"}


def folder_table(written: WrittenFederation) -> Table:
    """A row for the server, for each sector, and for the clients of each sector together."""
    by_name = {party.name: party for party in written.parties}
    rows = [["server", "server", by_name["server"].listens, "", ""]]
    for name, clients in written.sectors.items():
        host = by_name[name]
        rows.append([name, "sector", host.listens, host.joins, ""])
        size = count(sum(by_name[client].rows for client in clients))
        rows.append([listed(clients, SHOWN), "client", "", host.listens, size])
    title = f"Folders in {written.out}"
    return table(["folder", "role", "its link", "joins", "rows"], rows, title=title, right=["rows"])


def next_steps(written: WrittenFederation) -> Iterator[str]:
    """What to do after `deploy init`."""
    out, first = written.out, next(iter(written.sectors))
    examples = (("server", "server"), ("sector", first), ("client", written.sectors[first][0]))
    if written.enrol:
        here = shlex.quote(str(out))
        yield "Next, send each folder to its party, who makes its keys there and sends its request back:"
        yield f"  headwater deploy enrol {written.sectors[first][0]}"
        yield "Then here, where ca/ is, and afterwards at every party:"
        yield f"  headwater deploy approve {here} *.request.json"
        yield f"  headwater deploy enrol {written.sectors[first][0]} --approval approval.json"
    elif written.local:
        yield "Next, here, each in a terminal of its own:"
        yield from (f"  headwater deploy {role} {shlex.quote(str(out / name))}" for role, name in examples)
        rest = len(written.parties) - len(examples)
        more = f"the other {rest} folders too; " if rest else ""
        yield f"  {more}headwater deploy status {shlex.quote(str(out))}"
    else:
        yield "Next, copy each folder to the machine of its party, over a channel that you trust, and there:"
        yield from (f"  headwater deploy {role} {name}" for role, name in examples)
    if written.packages:
        yield f"The configuration names {', '.join(written.packages)}, which has to be installed at every party."
    yield f"{out / 'ca'} can sign certificates and approve keys for this federation: keep it to yourself."


def status_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per party, from `headwater.deploy.status.rows`."""
    cells = []
    for row in rows:
        seconds, accuracy = number(row["seconds"]), number(row["accuracy"])
        progress, seen = ["", "not started yet"], ""
        if seconds is not None:
            progress = [f"{row['round']} of {row['rounds']}", str(row["phase"] or "")]
            seen = f"{duration(seconds)} ago"
        party = [str(row["party"]), str(row["role"]), "yes" if row["up"] else "no"]
        cells.append([*party, *progress, "" if accuracy is None else percent(accuracy), _presence(row), seen])
    headings = ["party", "role", "up", "round", "phase", "accuracy", "below it", "last sign of life"]
    return table(headings, cells, right=["accuracy", "last sign of life"])


def _presence(row: dict[str, Any]) -> str:
    late_clients = [f"{name} {text}" for name, text in (row.get("late") or {}).items()]
    return ", ".join(filter(None, [_below(row), listed(late_clients, SHOWN)]))


def _below(row: dict[str, Any]) -> str:
    below = row.get("below") or {}
    gone = {name for name, member in below.items() if member.get("revoked")}
    members, present = [name for name in row["members"] or [] if name not in gone], row["present"] or []
    if not members:
        return ""
    absent = [name for name in members if name not in present]
    if not row["up"]:
        return f"{len(members)}, not known"
    counted = f"{len(members) - len(absent)} of {len(members)} present"
    owing = [name for name, member in below.items() if name in present and member.get("asked") is not None]
    counted += f", awaiting {listed(owing, SHOWN)}" if owing else ""
    return f"{counted}, without {listed(absent, SHOWN)}" if absent else counted


def payload_table(parties: Sequence[dict[str, Any]]) -> Table:
    """A row per party, receiver and kind of value, from `headwater.deploy.sent_log.summary`."""
    rows = []
    for party in parties:
        for row in party["payload"]:
            first, last = row["rounds"]
            what = [party["party"], row["to"], row["kind"], LINKS.get(row["tier"], row["tier"]), row["direction"]]
            rounds = str(first) if first == last else f"{first} to {last}"
            rows.append([*what, count(row["messages"]), size(row["bytes"]), rounds])
    headings = ["party", "sent to", "what", "link", "way", "messages", "payload", "rounds"]
    return table(headings, rows, title="Payload", right=["messages", "payload"])


def control_lines(parties: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was sent besides payload, what was refused, and which parties have sent nothing."""
    for party in parties:
        by_receiver: dict[str, list[str]] = {}
        for row in party["control"]:
            what = f"{row['what'] or 'control'} ({row['messages']} times)"
            by_receiver.setdefault(row["to"], []).append(what)
        for to, what_was_sent in by_receiver.items():
            yield f"{party['party']} also sent to {to}, as control: {', '.join(what_was_sent)}."
    for party in parties:
        for row in party["refused"]:
            first, last = row["rounds"]
            when = f"round {first}" if first == last else f"rounds {first} to {last}"
            yield f"{party['party']} refused {row['by'] or 'a message'} {row['count']} times ({when}): {row['why']}"
    if silent := [party["party"] for party in parties if not party["payload"] and not party["control"]]:
        yield f"Nothing was sent yet by {listed(silent, SHOWN)}."
