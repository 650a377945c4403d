"""Running one party: the options of `headwater deploy server`, `sector`, `client` and `join`, and what they do."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from headwater import startup
from headwater.cli.options import Options, takes
from headwater.cli.run import INTERRUPTED, Directory
from headwater.cli.terminal import say
from headwater.deploy.folder import PARTY, PartyFolder, find
from headwater.errors import ConfigError, MissingExtra, nearest

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


# Role and help text of each command that runs a party.
COMMANDS = {
    "server": ("server", "Run the server from its folder, until all rounds are done."),
    "sector": ("sector", "Run a sector's host from its folder."),
    "client": ("client", "Run a client from its folder."),
    "join": (
        "client",
        """Run a client that comes after the others have begun.

        The same as `client`: it takes part from the next round on, and its log says which that is or why it cannot.
        """,
    ),
}


def party_commands() -> Iterator[tuple[str, Callable[..., int]]]:
    """Every command that runs a party, by name. All of them have the same options."""
    for name, (role, text) in COMMANDS.items():
        yield name, _party_command(role, text)


def _party_command(role: str, text: str) -> Callable[..., int]:
    def command(
        options: Options,
        directory: Directory,
        log_format: LogFormat = "text",
        log_level: LogLevel = "info",
        metrics: Metrics = None,
    ) -> int:
        return serve_party(role, directory, options, log_format, log_level, metrics)

    command.__doc__ = text
    return takes("quiet")(command)


def serve_party(
    role: str, directory: Path, options: Options, log_format: str, log_level: str, metrics: str | None
) -> int:
    """Run the party of a folder. Returns the exit status.

    Args:
        role: that the folder must be of.
        directory: the folder.
    """
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
    from headwater.deploy import key_check
    from headwater.deploy.party_log import FORMATS, LEVELS, LogStyle
    from headwater.deploy.transport import Address as Where

    _check_word("--log-format", log_format, FORMATS)
    _check_word("--log-level", log_level, LEVELS)
    address = None if metrics is None else Where.parse(metrics, "--metrics")
    if address is not None and find_spec("prometheus_client") is None:
        raise MissingExtra("--metrics", "metrics")
    folder = PartyFolder.open(directory)
    for warning in key_check.check(folder):
        say(warning)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent by service managers, and means Ctrl-C
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
