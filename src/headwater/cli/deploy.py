"""`headwater deploy`: a real federation, with one process per party."""

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
from headwater.cli.options import Options, Source, command_group, takes
from headwater.cli.run import INTERRUPTED, TIERS, Directory
from headwater.cli.terminal import as_json, console, print_lines, say, table
from headwater.deploy.folder import PARTY, PartyFolder, find, listed
from headwater.errors import ConfigError, MissingExtra
from headwater.report.numbers import count, duration, number, percent, size

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from headwater.deploy.init import WrittenFederation

app = command_group(
    "deploy", "A real federation on Flower: folders and keys for its parties, a process for each, how they get on."
)
Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="Where the folders go; `federation` if left out.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the federation in that directory, keys and all.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")]
SHOWN = 4  # names in one cell
LINKS = TIERS | {"relay": "relayed inside a sector"}


@app.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@takes("sets seed rounds out data_dir quiet json force")
def init(options: Options, source: Source = None, out: Out = Path("federation"), force: Force = False) -> None:
    """Write a folder for each party.

    The argument is what `headwater run` takes. Each folder holds the agreed configuration, the party's keys and, of a
    client, its rows of the split: the federation then does what the simulation did.
    """
    config = options.config(source)
    from headwater.cli.terminal import status as progress
    from headwater.deploy import init as folders

    folders.check(config, out, force=force)
    with progress(f"reading {config.data.name} …", options.quiet):
        from headwater.training.experiment import prepare

        startup.freeze_gc()
        experiment = prepare(config)
    with progress("writing folders and keys …", options.quiet):
        written = folders.init(experiment, out, force=force)
    if written.left_out:
        say(f"left out, since there is no data for it: {', '.join(written.left_out)}")
    if options.json:
        as_json(
            {
                "out": str(written.out),
                "federation_sha256": written.sha256,
                "parties": [vars(party) for party in written.parties],
                "sectors": written.sectors,
                "left_out": list(written.left_out),
                "packages": list(written.packages),
            }
        )
        return
    console().print(folder_table(written))
    print_lines(*next_steps(written))


@app.command()
@takes("quiet")
def server(options: Options, directory: Directory) -> int:
    """Run the server from its folder, until all rounds are done."""
    return _serve("server", directory, options)


@app.command()
@takes("quiet")
def sector(options: Options, directory: Directory) -> int:
    """Run a sector's host from its folder."""
    return _serve("sector", directory, options)


@app.command()
@takes("quiet")
def client(options: Options, directory: Directory) -> int:
    """Run a client from its folder."""
    return _serve("client", directory, options)


@app.command()
@takes("json watch")
def status(options: Options, directory: Directory, watch: Watch = False) -> None:
    """How a party gets on.

    DIR is its folder, or the directory of several: then all of them.
    """
    if not watch:
        rows = _status_rows(directory)
        as_json(rows) if options.json else console().print(status_table(rows))
        return
    if options.json:
        raise ConfigError("--watch is for people to look at and --json for programs; use one of them")
    try:
        _watch(directory)
    except KeyboardInterrupt:
        return


@app.command()
@takes("json")
def audit(options: Options, directory: Directory) -> None:
    """What a party has sent to whom.

    DIR is its folder, or the directory of several: then all of them. Payload is counted as the ledger counts it.
    Control (sizes, losses, times, names) is listed and not charged.
    """
    from headwater.deploy.audit import summary

    parties = [summary(party) for party in find(directory)]
    if options.json:
        as_json(parties)
        return
    if any(party["payload"] for party in parties):
        console().print(payload_table(parties))
    print_lines(*control_lines(parties))


def _serve(role: str, directory: Path, options: Options) -> int:
    from importlib.util import find_spec

    parties = find(directory)
    if len(parties) > 1 or not (directory / PARTY).is_file():
        example = next((party for party in parties if party.role == role), parties[0])
        raise ConfigError(f"{directory} holds the folders of several parties; name one, such as {example.path}")
    party, quoted = parties[0], shlex.quote(str(directory))
    if party.role != role:
        raise ConfigError(
            f"{directory} is the folder of {party.role} {party.name}, not of a {role}; start it with: "
            f"headwater deploy {party.role} {quoted}"
        )
    if find_spec("flwr") is None:
        raise MissingExtra("a federation between machines", "flower")
    from headwater.deploy import keys

    folder = PartyFolder.open(directory)
    for warning in keys.check(folder):
        say(warning)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent by service managers, and means Ctrl-C
    try:
        from headwater.deploy.party_process import serve

        startup.freeze_gc()
        return serve(folder, quiet=options.quiet)
    except KeyboardInterrupt:
        again = f"headwater deploy {role} {quoted}"
        say(f"{role} {folder.name} was ended; what it has is kept, and it carries on with: {again}")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _status_rows(directory: Path) -> list[dict[str, Any]]:
    from headwater.deploy.status import rows

    return list(rows(find(directory)))


def _watch(directory: Path) -> None:
    """Redraw the table every second. Output that is no terminal gets a new table when something has changed."""
    if sys.stdout.isatty():
        from rich.live import Live

        with Live(_live(directory), console=console(), auto_refresh=False) as live:
            while True:
                time.sleep(1)
                live.update(_live(directory), refresh=True)
    before: Any = None
    while True:
        rows = _status_rows(directory)
        lasting = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
        if lasting != before:
            console().print(status_table(rows))
            sys.stdout.flush()
        before = lasting
        time.sleep(1)


def _live(directory: Path) -> Group:
    """The table and the last message of each party."""
    from rich.console import Group
    from rich.text import Text

    rows = _status_rows(directory)
    messages = [Text(f"{row['party']}: {row['message']}", style="dim") for row in rows if row["message"]]
    return Group(status_table(rows), *messages)


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
    if written.local:
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
    yield f"{out / 'ca'} can sign certificates for this federation: keep it to yourself."


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
    members, present = row["members"] or [], row["present"] or []
    if not members:
        return ""
    absent = [name for name in members if name not in present]
    if not row["up"]:
        return f"{len(members)}, not known"
    counted = f"{len(members) - len(absent)} of {len(members)} present"
    return f"{counted}, without {listed(absent, SHOWN)}" if absent else counted


def payload_table(parties: Sequence[dict[str, Any]]) -> Table:
    """A row per party, receiver and kind of value, from `headwater.deploy.audit.summary`."""
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
    """What was sent besides payload, and which parties have sent nothing."""
    for party in parties:
        by_receiver: dict[str, list[str]] = {}
        for row in party["control"]:
            what = f"{row['what'] or 'control'} ({row['messages']} times)"
            by_receiver.setdefault(row["to"], []).append(what)
        for to, what_was_sent in by_receiver.items():
            yield f"{party['party']} also told {to}, as control: {', '.join(what_was_sent)}."
    if silent := [party["party"] for party in parties if not party["payload"] and not party["control"]]:
        yield f"Nothing was sent yet by {listed(silent, SHOWN)}."
