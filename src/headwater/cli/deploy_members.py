"""`headwater deploy add`: a new client in a federation that exists."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.options import Options, takes
from headwater.cli.terminal import as_json, say

Where = Annotated[Path, typer.Argument(metavar="FEDERATION", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Sector = Annotated[str, typer.Option("--sector", metavar="SECTOR", help="That it is in.", show_default=False)]
Request = Annotated[
    Path | None,
    typer.Option(
        "--request",
        metavar="FILE",
        help="A public key that the client has made itself, such as node.pub; keys are made if it is left out.",
        show_default=False,
    ),
]
Enrol = Annotated[bool, typer.Option("--enrol", help="Make no key: the client makes its own, to be approved.")]


@takes("quiet json")
def add(
    options: Options,
    directory: Where,
    name: Name,
    sector: Sector,
    request: Request = None,
    enrol: Enrol = False,
) -> None:
    """Add a new client to a federation.

    FEDERATION is the directory of all folders, or the folder of one party. The agreement is amended there, and nothing
    in it is changed but for the new client. It takes effect when the server and the host of the client's sector are
    started again; the run goes on, and the client takes part from the next round after it has come.
    """
    from headwater.deploy.adding import add as add_client

    added = add_client(directory, name, sector, request, enrol=enrol)
    if options.json:
        as_json({key: str(value) if isinstance(value, Path) else value for key, value in vars(added).items()})
        return
    if options.quiet:
        return
    say(f"{name} is added to {sector} in the agreement of {', '.join(added.parties)}; its SHA-256 is {added.sha256}")
    if added.key:
        say(f"the key of {name} is {added.key}")
    if added.folder is not None:
        say(
            f"give {added.folder} to the new client, which names its data in party.toml and starts with: headwater "
            "deploy join DIR"
        )
    if enrol:
        say(
            f"{name} makes its key with `headwater deploy enrol DIR`; approve its request, and install the approval at "
            f"{sector} before that is started again"
        )
    if not added.host:
        key = f" --request {shlex.quote(str(added.public))}" if added.public else " --enrol" if enrol else ""
        say(
            f"the operator of {sector} has to do the same in its folder: headwater deploy add DIR {name} --sector "
            f"{sector}{key}"
        )
    if added.running:
        say(f"start {', '.join(added.running)} again, for this to take effect; the run goes on")
    if added.folder is not None and not added.everybody:
        say("all other parties take it over from the server when that is started again")
