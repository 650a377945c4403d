"""`headwater deploy`: a real federation, a process for each party."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import startup
from headwater.cli.options import DataDir, Json, Quiet, Rounds, Seed, Sets, Source, configure
from headwater.cli.show import as_json, say, table
from headwater.cli.show import out as console
from headwater.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from headwater.deploy.init import Written
    from headwater.deploy.listing import Found

app = typer.Typer(
    name="deploy",
    help="A real federation on Flower: folders and keys for its parties, a process for each, how they get on.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="Where the folders go; `federation` if left out.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the federation in that directory, keys and all.")]
Watched = Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")]
INTERRUPTED = 130
SHOWN = 4  # names in one cell
TIERS = {"server_sector": "server – sectors", "sector_client": "sectors – clients", "relay": "relayed inside a sector"}


@app.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def init(
    source: Source = None,
    sets: Sets = None,
    seed: Seed = None,
    rounds: Rounds = None,
    out: Out = Path("federation"),
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    force: Force = False,
) -> None:
    """Write a folder for each party.

    The argument is what `headwater run` takes. Each folder holds the agreed configuration, the party's keys and, of a
    client, its rows of the split: the federation then does what the simulation did.
    """
    config = configure(source, sets, seed=seed, rounds=rounds, data_dir=data_dir)
    from headwater.cli.progress import status as telling
    from headwater.deploy import init as folders

    folders.check(config, out, force=force)
    with telling(f"reading {config.data.name} …", quiet):
        from headwater.training.experiment import prepare

        startup.end()
        experiment = prepare(config)
    with telling("writing folders and keys …", quiet):
        written = folders.init(experiment, out, force=force)
    if written.left_out:
        say(f"left out, since there is no data for it: {', '.join(written.left_out)}")
    if json:
        as_json(_facts(written))
        return
    console().print(_folders(written))
    for line in _next(written):
        console().print(line, markup=False, soft_wrap=True)


@app.command()
def server(directory: Directory, quiet: Quiet = False) -> int:
    """Run the server from its folder, until all rounds are done."""
    return _serve("server", directory, quiet)


@app.command()
def sector(directory: Directory, quiet: Quiet = False) -> int:
    """Run a sector's host from its folder."""
    return _serve("sector", directory, quiet)


@app.command()
def client(directory: Directory, quiet: Quiet = False) -> int:
    """Run a client from its folder."""
    return _serve("client", directory, quiet)


@app.command()
def status(directory: Directory, json: Json = False, watch: Watched = False) -> None:
    """How a party gets on.

    DIR is its folder, or the directory of several: then all of them.
    """
    if not watch:
        rows = list(_states(directory))
        as_json(rows) if json else console().print(_state_table(rows))
        return
    if json:
        raise ConfigError("--watch is for people to look at and --json for programs; use one of them")
    try:
        _follow(directory)
    except KeyboardInterrupt:
        return  # the way out of it


@app.command()
def audit(directory: Directory, json: Json = False) -> None:
    """What a party has sent to whom.

    DIR is its folder, or the directory of several: then all of them. Payload is counted as the ledger counts it.
    Control (sizes, losses, times, names) is listed and not charged.
    """
    from headwater.deploy.listing import find

    found = [_sent(party) for party in find(directory)]
    if json:
        as_json(found)
        return
    if any(party["payload"] for party in found):
        console().print(_sent_table(found))
    for line in _control(found):
        console().print(line, markup=False, soft_wrap=True)


def _serve(role: str, directory: Path, quiet: bool) -> int:
    from importlib.util import find_spec

    from headwater.deploy.listing import find

    found = find(directory)
    if len(found) > 1 or not (directory / "party.toml").is_file():
        some = next((party for party in found if party.role == role), found[0])
        raise ConfigError(f"{directory} holds the folders of several parties; name one, such as {some.path}")
    if found[0].role != role:
        raise ConfigError(
            f"{directory} is the folder of {found[0].role} {found[0].name}, not of a {role}; start it with: "
            f"headwater deploy {found[0].role} {shlex.quote(str(directory))}"
        )
    if find_spec("flwr") is None:
        raise MissingExtra("a federation between machines", "flower")
    from headwater.deploy import keys
    from headwater.deploy.folder import PartyFolder

    folder = PartyFolder.open(directory)
    for sentence in keys.check(folder):
        say(sentence)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _as_interrupt)  # a service manager asks like this, and means the same
    try:
        from headwater.deploy.parties import serve

        startup.end()
        return serve(folder, quiet=quiet)
    except KeyboardInterrupt:
        again = f"headwater deploy {role} {shlex.quote(str(directory))}"
        say(f"{role} {folder.name} was ended; what it has is kept, and it carries on with: {again}")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _as_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _facts(written: Written) -> dict[str, Any]:
    return {
        "out": str(written.out),
        "federation_sha256": written.sha256,
        "parties": [vars(party) for party in written.parties],
        "sectors": written.sectors,
        "left_out": list(written.left_out),
        "packages": list(written.packages),
    }


def _folders(written: Written) -> Table:
    """A row for the server, each sector, and the clients of each sector together."""
    from headwater.report.numbers import count

    by_name = {party.name: party for party in written.parties}
    rows = [["server", "server", by_name["server"].listens, "", ""]]
    for name, clients in written.sectors.items():
        host = by_name[name]
        rows.append([name, "sector", host.listens, host.joins, ""])
        rows.append(
            [_some(clients), "client", "", host.listens, count(sum(by_name[client].rows for client in clients))]
        )
    title = f"Folders in {written.out}"
    return table(["folder", "role", "its link", "joins", "rows"], rows, title=title, right=["rows"])


def _next(written: Written) -> Iterator[str]:
    out, first = written.out, next(iter(written.sectors))
    some = (("server", "server"), ("sector", first), ("client", written.sectors[first][0]))
    if written.local:
        yield "Next, here, each in a terminal of its own:"
        yield from (f"  headwater deploy {role} {shlex.quote(str(out / name))}" for role, name in some)
        rest = len(written.parties) - len(some)
        more = f"the other {rest} folders too; " if rest else ""
        yield f"  {more}headwater deploy status {shlex.quote(str(out))}"
    else:
        yield "Next, copy each folder to the machine of its party, over a channel that you trust, and there:"
        yield from (f"  headwater deploy {role} {name}" for role, name in some)
    if written.packages:
        yield f"The configuration names {', '.join(written.packages)}, which has to be installed at every party."
    yield f"{out / 'ca'} can sign certificates for this federation: keep it to yourself."


def _states(directory: Path) -> Iterator[dict[str, Any]]:
    from headwater.deploy.listing import find
    from headwater.deploy.status import FIELDS, read

    for party in find(directory):
        told = read(party.state)
        row: dict[str, Any] = {"party": party.name, "role": party.role, "up": told["up"], "pid": told.get("pid")}
        row |= {key: told.get(key) for key in (*FIELDS, "since", "updated")}
        updated = told.get("updated")
        row["seconds"] = max(0.0, time.time() - updated) if isinstance(updated, int | float) else None
        yield row


def _state_table(rows: Sequence[dict[str, Any]]) -> Table:
    from headwater.report.numbers import duration, number, percent

    cells = []
    for row in rows:
        seconds = number(row["seconds"])
        never = seconds is None
        cells.append(
            [
                str(row["party"]),
                str(row["role"]),
                "yes" if row["up"] else "no",
                "" if never else f"{row['round']} of {row['rounds']}",
                "not started yet" if never else str(row["phase"] or ""),
                "" if number(row["accuracy"]) is None else percent(number(row["accuracy"])),
                _below(row),
                "" if never else f"{duration(seconds)} ago",
            ]
        )
    headings = ["party", "role", "up", "round", "phase", "accuracy", "below it", "last sign of life"]
    return table(headings, cells, right=["accuracy", "last sign of life"])


def _below(row: dict[str, Any]) -> str:
    members, present = row["members"] or [], row["present"] or []
    if not members:
        return ""
    absent = [name for name in members if name not in present]
    if not row["up"]:
        return f"{len(members)}, not known"
    told = f"{len(members) - len(absent)} of {len(members)} present"
    return f"{told}, without {_some(absent)}" if absent else told


def _follow(directory: Path) -> None:
    """Look once a second. Where nothing can be drawn over, the table is printed again when something has changed."""
    if sys.stdout.isatty():
        from rich.live import Live

        with Live(_live(directory), console=console(), auto_refresh=False) as live:
            while True:
                time.sleep(1)
                live.update(_live(directory), refresh=True)
    before: Any = None
    while True:
        rows = list(_states(directory))
        told = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
        if told != before:
            console().print(_state_table(rows))
            sys.stdout.flush()
        before = told
        time.sleep(1)


def _live(directory: Path) -> Group:
    """The table and what each party said last."""
    from rich.console import Group
    from rich.text import Text

    rows = list(_states(directory))
    said = [Text(f"{row['party']}: {row['message']}", style="dim") for row in rows if row["message"]]
    return Group(_state_table(rows), *said)


def _sent(party: Found) -> dict[str, Any]:
    from headwater.deploy.audit import CONTROL, sums

    rows: list[dict[str, Any]] = []
    for way, total in sorted(sums(party.state).items()):
        row = way._asdict() | {"messages": total.messages, "bytes": total.bytes, "rounds": [total.first, total.last]}
        row["party"] = party.name
        rows.append(row)
    payload = [row for row in rows if row["kind"] != CONTROL]
    ways = sorted({(row["tier"], row["direction"]) for row in payload})
    moved = {
        tier: {
            d: sum(r["bytes"] for r in payload if (r["tier"], r["direction"]) == (t, d)) for t, d in ways if t == tier
        }
        for tier in sorted({tier for tier, _ in ways})
    }
    return {
        "party": party.name,
        "role": party.role,
        "bytes": moved,
        "payload": [
            {key: row[key] for key in ("tier", "direction", "to", "kind", "messages", "bytes", "rounds")}
            for row in payload
        ],
        "control": [
            {key: row[key] for key in ("tier", "direction", "to", "what", "messages", "rounds")}
            for row in rows
            if row["kind"] == CONTROL
        ],
    }


def _sent_table(found: Sequence[dict[str, Any]]) -> Table:
    from headwater.report.numbers import count, size

    rows = []
    for party in found:
        for row in party["payload"]:
            first, last = row["rounds"]
            rows.append(
                [
                    party["party"],
                    row["to"],
                    row["kind"],
                    TIERS.get(row["tier"], row["tier"]),
                    row["direction"],
                    count(row["messages"]),
                    size(row["bytes"]),
                    str(first) if first == last else f"{first} to {last}",
                ]
            )
    headings = ["party", "sent to", "what", "link", "way", "messages", "payload", "rounds"]
    return table(headings, rows, title="Payload", right=["messages", "payload"])


def _control(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What went along that is no payload, in words."""
    silent = [party["party"] for party in found if not party["payload"] and not party["control"]]
    for party in found:
        told: dict[str, list[str]] = {}
        for row in party["control"]:
            told.setdefault(row["to"], []).append(f"{row['what'] or 'control'} ({row['messages']} times)")
        for to, words in told.items():
            yield f"{party['party']} also told {to}, as control: {', '.join(words)}."
    if silent:
        yield f"Nothing was sent yet by {_some(silent)}."


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
