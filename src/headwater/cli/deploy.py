"""`headwater deploy`: a real federation, with one process per party."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import startup
from headwater.cli.deploy_party import party_commands
from headwater.cli.deploy_tables import control_lines, folder_table, next_steps, payload_table, status_table
from headwater.cli.options import Options, Source, command_group, takes
from headwater.cli.run import Directory
from headwater.cli.terminal import as_json, console, print_lines, reading, say
from headwater.deploy.folder import find
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Group


app = command_group(
    "deploy", "A real federation on Flower: folders and keys for its parties, a process for each, how they get on."
)
Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="Where the folders go; `federation` if left out.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the federation in that directory, keys and all.")]
Enrol = Annotated[bool, typer.Option("--enrol", help="Make no private keys: each party makes its own.")]
Port = Annotated[int, typer.Option("--port", metavar="N", help="Of the page; 0 for any free one.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")]
Member = Annotated[str, typer.Argument(metavar="CLIENT", show_default=False)]
Host = Annotated[Path, typer.Argument(metavar="[DIR]", show_default=False)]
To = Annotated[
    int, typer.Option("--to", metavar="ROUND", help="The round whose state is restored.", show_default=False)
]


@app.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@takes("sets seed rounds out data_dir quiet json enrol force")
def init(
    options: Options,
    source: Source = None,
    out: Out = Path("federation"),
    enrol: Enrol = False,
    force: Force = False,
) -> None:
    """Write a folder for each party.

    The argument is what `headwater run` takes. Each folder holds the agreed configuration, the party's keys and, of a
    client, its rows of the split: the federation then does what the simulation did. With --enrol each party makes its
    keys itself.
    """
    config = options.config(source)
    from headwater.cli.terminal import status as progress
    from headwater.deploy import init as folders

    folders.check(config, out, force=force)
    with progress(f"{reading(config.data.name)} …", options.quiet):
        from headwater.training.experiment import prepare

        startup.freeze_gc()
        experiment = prepare(config)
    with progress("writing folders and keys …", options.quiet):
        written = folders.init(experiment, out, force=force, enrol=enrol)
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
                "enrol": written.enrol,
            }
        )
        return
    console().print(folder_table(written))
    print_lines(*next_steps(written))


for _name, _command in party_commands():
    app.command(_name)(_command)


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
@takes("quiet")
def watch(options: Options, directory: Directory, port: Port = 9180) -> None:
    """Show how parties get on, as a page in the browser.

    DIR is a party's folder, or the directory of several. The page is served on this machine only, at an address that
    nobody can guess, and refreshes itself. It shows what is in the folders, and contacts no other party.
    """
    from headwater.deploy.live_page import PageServer

    find(directory)
    server = PageServer(directory, port)
    console().print(server.address, markup=False, soft_wrap=True)
    if not options.quiet:
        say("open this address in a browser of this machine; Ctrl-C ends it, and no party with it")
    sys.stdout.flush()
    try:
        server.serve()
    except KeyboardInterrupt:
        return
    finally:
        server.close()


@app.command()
@takes("json")
def audit(options: Options, directory: Directory) -> None:
    """What a party has sent to whom.

    DIR is its folder, or the directory of several: then all of them. Payload is counted as the ledger counts it.
    Control (sizes, losses, times, names) is listed and not charged. So are steps that it was asked for and refused,
    since the agreed method does not make them there.
    """
    from headwater.deploy.sent_log import summary

    parties = [summary(party) for party in find(directory)]
    if options.json:
        as_json(parties)
        return
    if any(party["payload"] for party in parties):
        console().print(payload_table(parties))
    print_lines(*control_lines(parties))


@app.command()
@takes("quiet")
def revoke(options: Options, name: Member, directory: Host = Path()) -> None:
    """Admit a client no longer.

    DIR is the folder of its sector's host, which may be running. The others go on without it, and the server is told.
    """
    from headwater.deploy.revocation import revoke as revoke_party

    folder = revoke_party(directory, name)
    if not options.quiet:
        say(
            f"{name} is revoked: {folder.name} admits it no longer, from now on and after any restart, whatever key of "
            f"it is approved later. To admit it again, move {name}.pub from {folder.keys / 'revoked'} back to "
            f"{folder.keys / 'members'}, or for a new key remove it and install the approval, and start {folder.name} "
            "again"
        )


@app.command()
@takes("quiet")
def rollback(options: Options, directory: Directory, to: To) -> None:
    """Go back to an earlier round.

    DIR is the folder of the server, which must not be running. When it is started again it trains on from there.
    """
    from headwater.deploy.folder import PartyFolder
    from headwater.deploy.rollback import rollback as roll_back

    at = roll_back(PartyFolder.open(directory), to)
    if not options.quiet:
        say(
            f"the run was at round {at} and is at round {to} again; start the server, and every party that has ended, "
            "to train on from there"
        )


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
