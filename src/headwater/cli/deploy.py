"""`headwater deploy`: a real federation, with one process per party."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import startup
from headwater.cli import deploy_tables as tables
from headwater.cli.options import Options, Source, takes
from headwater.cli.terminal import as_json, console, say
from headwater.errors import ConfigError, MissingExtra, nearest

if TYPE_CHECKING:
    from rich.console import Group

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
LogFormat = Annotated[
    str, typer.Option("--log-format", metavar="text|json", help="Lines of the log as text, or each as a JSON object.")
]
LogLevel = Annotated[
    str,
    typer.Option("--log-level", metavar="debug|info|warning|error", help="Leave out lines that are less important."),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics", metavar="HOST:PORT", help="Serve /healthz and /metrics (Prometheus) there; off if left out."
    ),
]
Port = Annotated[int, typer.Option("--port", metavar="N", help="Of the page; 0 for any free one.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")]
INTERRUPTED = 130  # exit status after Ctrl-C


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
    console().print(tables.folder_table(written))
    for line in tables.next_steps(written):
        console().print(line, markup=False, soft_wrap=True)


@app.command()
@takes("quiet")
def server(
    options: Options,
    directory: Directory,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
    metrics: Metrics = None,
) -> int:
    """Run the server from its folder, until all rounds are done."""
    return _serve("server", directory, options, log_format, log_level, metrics)


@app.command()
@takes("quiet")
def sector(
    options: Options,
    directory: Directory,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
    metrics: Metrics = None,
) -> int:
    """Run a sector's host from its folder."""
    return _serve("sector", directory, options, log_format, log_level, metrics)


@app.command()
@takes("quiet")
def client(
    options: Options,
    directory: Directory,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
    metrics: Metrics = None,
) -> int:
    """Run a client from its folder."""
    return _serve("client", directory, options, log_format, log_level, metrics)


@app.command()
@takes("json watch")
def status(options: Options, directory: Directory, watch: Watch = False) -> None:
    """How a party gets on.

    DIR is its folder, or the directory of several: then all of them.
    """
    if not watch:
        rows = _status_rows(directory)
        as_json(rows) if options.json else console().print(tables.status_table(rows))
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
    from headwater.deploy.folder import find
    from headwater.deploy.watch import PageServer

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
    Control (sizes, losses, times, names) is listed and not charged.
    """
    from headwater.deploy.audit import summary
    from headwater.deploy.folder import find

    parties = [summary(party) for party in find(directory)]
    if options.json:
        as_json(parties)
        return
    if any(party["payload"] for party in parties):
        console().print(tables.payload_table(parties))
    for line in tables.control_lines(parties):
        console().print(line, markup=False, soft_wrap=True)


def _serve(role: str, directory: Path, options: Options, log_format: str, log_level: str, metrics: str | None) -> int:
    from importlib.util import find_spec

    from headwater.deploy.folder import PARTY, PartyFolder, find

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
    from headwater.deploy.party_log import FORMATS, LEVELS, LogStyle
    from headwater.deploy.transport import Address as Where

    _check_word("--log-format", log_format, FORMATS)
    _check_word("--log-level", log_level, LEVELS)
    address = None if metrics is None else Where.parse(metrics, "--metrics")
    if address is not None and find_spec("prometheus_client") is None:
        raise MissingExtra("--metrics", "metrics")
    folder = PartyFolder.open(directory)
    for warning in keys.check(folder):
        say(warning)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _interrupt)  # sent by service managers, with the same meaning as Ctrl-C
    try:
        from headwater.deploy.party_process import serve

        startup.freeze_gc()
        return serve(folder, style=LogStyle(options.quiet, log_format, log_level), metrics=address)
    except KeyboardInterrupt:
        again = f"headwater deploy {role} {quoted}"
        say(f"{role} {folder.name} was ended; what it has is kept, and it carries on with: {again}")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_word(option: str, given: str, accepted: Sequence[str]) -> None:
    if given not in accepted:
        raise ConfigError(f"{option} must be one of {', '.join(accepted)}, got {given!r}{nearest(given, accepted)}")


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _status_rows(directory: Path) -> list[dict[str, Any]]:
    from headwater.deploy.folder import find
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
            console().print(tables.status_table(rows))
            sys.stdout.flush()
        before = lasting
        time.sleep(1)


def _live(directory: Path) -> Group:
    """The table and the last message of each party."""
    from rich.console import Group
    from rich.text import Text

    rows = _status_rows(directory)
    messages = [Text(f"{row['party']}: {row['message']}", style="dim") for row in rows if row["message"]]
    return Group(tables.status_table(rows), *messages)
