"""A party's side of enrolment: it makes its keys, asks for their approval, and installs the approval.

New private keys are in `keys/next` until they are approved; then they take the place of those before, if there were
any. Every step may be repeated: keys that were made are used again, and none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headwater.deploy import approval
from headwater.deploy.approval import KeyApproval, read_approval
from headwater.deploy.enrolment import KINDS, LINK, NODE, certificate_hash, make_request, shown
from headwater.deploy.folder import PARTY, PartyFolder, revoked_key
from headwater.deploy.keys import (
    NEXT,
    is_issued_by,
    link_key,
    link_private,
    need_cryptography,
    node_keys,
    node_line,
    node_private,
    read_certificate,
)
from headwater.deploy.party_files import request_name
from headwater.deploy.private_files import PRIVATE, check_private, directory
from headwater.deploy.private_files import replace as write_file
from headwater.deploy.transport import Address
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

READ = {NODE: node_private, LINK: link_private}


class Asked(NamedTuple):
    """A request that was written.

    Args:
        party: whose.
        file: the request.
        fingerprints: of the keys in it, by kind, as `ssh-keygen -lf` prints them.
        made: kinds of keys that were made now; the others were there.
        where: folder of the private keys.
        vouched: whether the keys before have signed it, so that nobody need compare fingerprints.
    """

    party: str
    file: Path
    fingerprints: dict[str, str]
    made: list[str]
    where: Path
    vouched: bool


class Installed(NamedTuple):
    """An approval that was installed.

    Args:
        party: where.
        number: of the approval.
        own: kinds of own keys that are used from the next start on, and were not before.
        members: fingerprints of members' keys that are new here, by member.
        missing: members that have no approved key yet.
        revoked: members that have one, and are not admitted since they were revoked here.
    """

    party: str
    number: int
    own: list[str]
    members: dict[str, str]
    missing: list[str]
    revoked: list[str]


def enrol(path: Path) -> Asked:
    """Make the keys that a party does not have yet, and write a request for all of its keys.

    Args:
        path: the party's folder.

    Raises:
        ConfigError: if the folder cannot be enrolled.
    """
    folder = _open(path)
    return _ask(
        folder, KINDS[folder.role], {kind for kind in KINDS[folder.role] if not _current(folder, kind).exists()}
    )


def rotate(path: Path, only: str | None = None) -> Asked:
    """Make new keys for a party that has some, and write a request that the old keys have signed as well.

    Args:
        path: the party's folder. The party may be running, and keeps its old keys until the approval is installed.
        only: the kind of key, `node` or `link`; None for all that the party has.

    Raises:
        ConfigError: if there is no key to replace.
    """
    folder = _open(path)
    kinds = KINDS[folder.role]
    if only is not None and only not in kinds:
        raise ConfigError(f"--only must be {' or '.join(kinds)} for a {folder.role}, got {only!r}")
    kinds = kinds if only is None else (only,)
    for kind in kinds:
        if not _current(folder, kind).is_file():
            raise ConfigError(
                f"{folder.name} has no {kind} key to replace; it makes its first one with: headwater deploy enrol DIR"
            )
    return _ask(folder, kinds, {*kinds})


def install(path: Path, file: Path) -> Installed:
    """Install an approval: from the next start on, the party uses its approved keys and admits approved members.

    Args:
        path: the party's folder.
        file: the approval.

    Raises:
        ConfigError: if the approval is not for this party and its keys, or older than the one that is installed.
    """
    folder = _open(path)
    authority = read_certificate(folder.keys / "ca.crt")
    given = read_approval(file, authority, folder.federation.origin)
    kept = folder.keys / approval.FILE
    if kept.exists():
        before = read_approval(kept, authority, folder.federation.origin)
        if before.number > given.number or (before.number == given.number and before != given):
            raise ConfigError(
                f"{file} is approval {given.number} of this federation, and {folder.name} has number {before.number} "
                "already; ask the operator of the federation for the latest"
            )
    kinds = KINDS[folder.role]
    if folder.name not in given.parties:
        if not all(_current(folder, kind).is_file() for kind in kinds):
            raise ConfigError(
                f"{file} has no keys of {folder.name}: its request is not approved yet; send "
                f"{folder.path / request_name(folder.name)} to the operator of the federation"
            )
        kinds = ()  # a party of a federation that an earlier version made, with keys that the authority has not seen
    sources = {kind: _source(folder, kind, given, file) for kind in kinds}
    if LINK in sources:
        _check_certificate(folder.name, given.certificate(folder.name), authority, file)
    own = [kind for kind, source in sources.items() if _put(folder, kind, source, given)]
    members, missing, revoked = _put_members(folder, given)
    write_file(kept, given.content)
    if (folder.keys / NEXT).is_dir() and not any((folder.keys / NEXT).iterdir()):
        (folder.keys / NEXT).rmdir()
    return Installed(folder.name, given.number, own, members, missing, revoked)


def _open(path: Path) -> PartyFolder:
    need_cryptography()
    folder = PartyFolder.open(path, keys_needed=False)
    if folder.insecure:
        raise ConfigError(f"{folder.path / PARTY} has insecure = true, which uses no keys; set it to false first")
    if not (folder.keys / "ca.crt").is_file():
        raise ConfigError(
            f"there is no {folder.keys / 'ca.crt'}, the certificate of the federation's authority; ask the operator of "
            "the federation for the folder again"
        )
    check_private(folder.keys)
    return folder


def _current(folder: PartyFolder, kind: str) -> Path:
    return folder.keys / f"{kind}.key"


def _next(folder: PartyFolder, kind: str) -> Path:
    return folder.keys / NEXT / f"{kind}.key"


def _private(file: Path, kind: str) -> EllipticCurvePrivateKey:
    check_private(file)
    return READ[kind](file)


def _ask(folder: PartyFolder, kinds: Sequence[str], needed: set[str]) -> Asked:
    """Write a request for keys of these kinds. Of those that are needed, new ones are made unless there are some."""
    made = [kind for kind in kinds if kind in needed and not _next(folder, kind).exists()]
    for kind in made:
        directory(folder.keys / NEXT)
        content = node_keys(folder.name).private if kind == NODE else link_key()
        write_file(_next(folder, kind), content, PRIVATE)
    asked = {kind: _next(folder, kind) if _next(folder, kind).exists() else _current(folder, kind) for kind in kinds}
    keys = {kind: _private(file, kind) for kind, file in asked.items()}
    before = {
        kind: _private(_current(folder, kind), kind)
        for kind, file in asked.items()
        if file != _current(folder, kind) and _current(folder, kind).exists()
    }
    reach = None if folder.link is None else Address.parse(folder.link.reach or folder.link.address, "link.reach")
    authority = certificate_hash(read_certificate(folder.keys / "ca.crt"))
    content = make_request(folder.name, folder.federation.origin, authority, keys, before, reach)
    file = folder.path / request_name(folder.name)
    write_file(file, content)
    lines = {kind: shown(key.public_key(), folder.name, kind) for kind, key in keys.items()}
    return Asked(folder.name, file, lines, made, folder.keys / NEXT, before.keys() == keys.keys())


def _source(folder: PartyFolder, kind: str, given: KeyApproval, file: Path) -> Path:
    """The private key that an approval is for."""
    approved = given.key(folder.name, kind)
    found = [place for place in (_next(folder, kind), _current(folder, kind)) if place.exists()]
    for place in found:
        if _private(place, kind).public_key() == approved:
            break
    else:
        theirs = "none" if approved is None else shown(approved, folder.name, kind)
        raise ConfigError(
            f"{file} approves another {kind} key of {folder.name} than those in {folder.keys}: {theirs}. If no other "
            "request was sent from here, somebody else has asked in this party's name: tell the operator of the "
            "federation"
        )
    return place


def _check_certificate(name: str, certificate: Certificate | None, authority: Certificate, file: Path) -> None:
    if certificate is None or not is_issued_by(certificate, authority):
        raise ConfigError(f"the certificate of {name} in {file} is not signed by keys/ca.crt; ask for it again")
    if (until := certificate.not_valid_after_utc) <= datetime.now(UTC):
        raise ConfigError(
            f"the certificate of {name} in {file} ran out on {until:%Y-%m-%d}; ask for a new one, beginning with: "
            "headwater deploy rotate DIR --only link"
        )


def _put(folder: PartyFolder, kind: str, source: Path, given: KeyApproval) -> bool:
    """Use an approved key from the next start on. Returns whether that changes something."""
    public = folder.keys / ("node.pub" if kind == NODE else "link.crt")
    text = node_line(given.key(folder.name, NODE), folder.name) if kind == NODE else given.parties[folder.name].link
    content = text.encode()
    changed = source == _next(folder, kind) or not public.exists() or public.read_bytes() != content
    if source == _next(folder, kind):
        source.replace(_current(folder, kind))
    write_file(public, content)
    return changed


def _put_members(folder: PartyFolder, given: KeyApproval) -> tuple[dict[str, str], list[str], list[str]]:
    """Write the keys of members. Returns those that are new here, members without a key, and revoked ones."""
    new: dict[str, str] = {}
    missing: list[str] = []
    revoked: list[str] = []
    for member in folder.federation.members_of(folder.name):
        key = given.key(member, NODE)
        if revoked_key(folder.keys, member).exists():
            revoked += [] if key is None else [member]
        elif key is None:
            missing += [] if (folder.keys / "members" / f"{member}.pub").exists() else [member]
        else:
            directory(folder.keys / "members")
            file, line = folder.keys / "members" / f"{member}.pub", node_line(key, member).encode()
            if not file.exists() or file.read_bytes() != line:
                write_file(file, line)
                new[member] = shown(key, member, NODE)
    return new, missing, revoked
