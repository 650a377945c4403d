"""`headwater deploy enrol`, `approve`, `rotate` and `add`: keys of the parties, and new clients."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import Options, takes
from headwater.cli.run import Directory
from headwater.cli.terminal import as_json, print_lines, say
from headwater.deploy.folder import listed

if TYPE_CHECKING:
    from headwater.deploy.approving import Approved
    from headwater.deploy.enrolling import Asked, Installed

Where = Annotated[Path, typer.Argument(metavar="FEDERATION", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Sector = Annotated[str, typer.Option("--sector", metavar="SECTOR", help="The client's sector.", show_default=False)]
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
    started again; the run goes on, and the client takes part from the first round after it has connected.
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
            f"{sector} before {sector} is started again"
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
        say("all other parties get it from the server when the server is started again")


ApprovalFile = Annotated[
    Path | None,
    typer.Option(
        "--approval", metavar="FILE", help="Install what `headwater deploy approve` wrote.", show_default=False
    ),
]
Requests = Annotated[list[Path], typer.Argument(metavar="REQUEST...", show_default=False)]
Replace = Annotated[
    bool, typer.Option("--replace", help="Accept a new key of a known party, a change of host, or a revoked party.")
]
Only = Annotated[
    str | None, typer.Option("--only", metavar="node|link", help="One kind of key; else all that the party has.")
]


@takes("quiet")
def enrol(options: Options, directory: Directory, approval: ApprovalFile = None) -> None:
    """Make a party's keys at the party.

    DIR is its folder. Its private keys are made there and stay there. The command writes a request, which the operator
    of the federation approves; then the same command with --approval installs the answer. It may be repeated: keys
    that were made are kept.
    """
    from headwater.deploy import enrolling

    if approval is not None:
        print_lines(*_installed(enrolling.install(directory, approval), options.quiet))
        return
    print_lines(*_asked(enrolling.enrol(directory), directory, options.quiet))


@takes("quiet")
def rotate(options: Options, directory: Directory, only: Only = None) -> None:
    """Replace a party's keys by new ones.

    DIR is its folder; the party may be running. The request is signed with the old keys too. They are used until the
    approval of the new ones is installed with `headwater deploy enrol DIR --approval FILE`.
    """
    from headwater.deploy import enrolling

    print_lines(*_asked(enrolling.rotate(directory, only), directory, options.quiet))


@takes("quiet")
def approve(options: Options, federation: Where, requests: Requests, replace: Replace = False) -> None:
    """Approve the keys of parties.

    FEDERATION is the directory with ca/. Each REQUEST is a file that a party has sent. The approval, one file for all
    parties, holds nothing secret. Compare the fingerprints with the parties before you send it to them.
    """
    from headwater.deploy.approving import approve as approve_requests

    done = approve_requests(federation, requests, replaced=replace)
    print_lines(*_approved(done, options.quiet))


def _asked(asked: Asked, directory: Path, quiet: bool) -> Iterator[str]:
    yield from asked.fingerprints.values()
    if quiet:
        return
    if asked.made:
        yield f"Private keys were made ({' and '.join(asked.made)}) in {asked.where}; nobody else has them."
    else:
        yield "The private keys were there already and are kept."
    compare = (
        "It is signed with the previous key, so no phone call is needed."
        if asked.vouched
        else f"Compare the fingerprint{'s' if len(asked.fingerprints) > 1 else ''} above with them by phone."
    )
    yield f"Next, send {asked.file} to the operator of the federation, who has ca/. {compare} When it is approved:"
    yield f"  headwater deploy enrol {shlex.quote(str(directory))} --approval approval.json"


def _approved(done: Approved, quiet: bool) -> Iterator[str]:
    yield from (f"{each.fingerprint} {each.how}" for each in done.decisions)
    if quiet:
        return
    if calls := list(dict.fromkeys(each.party for each in done.decisions if each.to_confirm)):
        yield f"Before you send the approval to anybody, compare the fingerprints by phone with {listed(calls)}."
    yield f"Approval {done.number} is {done.file}. Send it to all parties, who install it with:"
    yield "  headwater deploy enrol DIR --approval approval.json"
    if done.missing:
        yield f"Not approved yet: {listed(done.missing)}."


def _installed(done: Installed, quiet: bool) -> Iterator[str]:
    yield from (f"{line} admitted" for line in done.members.values())
    if done.missing:
        yield f"No key is approved yet of {listed(done.missing)}: install a later approval when there is one."
    if done.revoked:
        yield (
            f"Not admitted, since revoked here: {listed(done.revoked)}. To admit it again, remove its file in "
            "keys/revoked and install the approval again."
        )
    if quiet:
        return
    used = "are in use" if not done.own else f"({' and '.join(done.own)}) are used from its next start on"
    yield f"{done.party} has approval {done.number}; its keys {used}."
