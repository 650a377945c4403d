"""`headwater deploy add`: one more client, with a key of its own, in a federation that exists.

The agreement is amended in all folders that are given: those of one party, or of all. Parties whose folders are
elsewhere take the amendment over from the messages of the server, except the host of the client's sector, which has to
admit the client's key: there the same command is given once more.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from headwater import __version__
from headwater.core.records import parse_toml
from headwater.deploy import status
from headwater.deploy.agreement import Agreement
from headwater.deploy.amendment import amended, next_client, replace_agreement
from headwater.deploy.folder import CONFIG, DATA, FEDERATION, PARTY, FoundParty, PartyFolder, find, listed
from headwater.deploy.keys import KeyPair, fingerprint, need_cryptography, node_key_of, node_keys, node_line
from headwater.deploy.party_files import CA, COMPOSE, COMPOSE_TEXT, PARTY_HEAD, README, REJOIN, UNIT_TEXT, unit_name
from headwater.errors import ConfigError, nearest
from headwater.training.checkpoint import write_whole

README_TEXT = """\
This is the folder of client {name}, added to a federation: keep it private, and only on the machine of that client.
There, `pip install 'headwater[flower]=={version}'`; then name the client's own data under [data] in party.toml.
{key}
`headwater deploy join DIR` starts it. It joins the link at {joins} and takes part from the next round on.
`headwater deploy status DIR` shows its status, `headwater deploy audit DIR` what it has sent.
"""
KEY_TEXT = (
    "Its private key is keys/node.key.",
    "Put the private key that belongs to keys/node.pub into keys/node.key, with mode 600.",
    "`headwater deploy enrol DIR` makes its key and a request to the operator, who approves it.",
)


@dataclass(frozen=True)
class Added:
    """What `add` did.

    Args:
        sha256: of the new federation.json, for all parties to compare.
        key: fingerprint of the client's key; empty without keys.
        public: file of its public key, to be handed to the operator of its sector's host; None without keys.
        folder: of the client; None if it was not written, since the server's folder is elsewhere.
        parties: whose folders were amended.
        running: those of them that have to be started again.
        host: whether the host of the client's sector is among them.
        everybody: whether all parties are.
    """

    name: str
    sector: str
    sha256: str
    key: str
    public: Path | None
    folder: Path | None
    parties: tuple[str, ...]
    running: tuple[str, ...]
    host: bool
    everybody: bool


def add(directory: Path, name: str, sector: str, request: Path | None = None, *, enrol: bool = False) -> Added:
    """Add a client to the agreement in every folder of a directory, and write the folder of the client.

    Args:
        directory: a party's folder, or one that holds several.
        name: of the new client: the next number.
        sector: that it is in.
        request: its public key. None makes a new pair, as `init` does, where the server's folder is.
        enrol: make none: the client makes its own and has it approved, with `headwater deploy enrol`.

    Raises:
        ConfigError: says what is wrong; nothing was written then.
    """
    found = find(directory)
    agreement, content = _one_agreement(found)
    # Clients' folders may not be complete yet: of one that was added, its data is to be named first.
    links = [PartyFolder.open(party.path) for party in found if party.role != "client"]
    if not links:
        raise ConfigError(f"{directory} has neither a server nor a sector's host, and only these can add a client")
    _check(agreement, content, name, sector)
    server = next((folder for folder in links if folder.role == "server"), None)
    target = None if server is None else server.path.parent / name
    if target is not None and target.exists():
        raise ConfigError(f"there is {target} already; move it away, or add the next client")
    if enrol and request is not None:
        raise ConfigError("--request and --enrol were both given; with --enrol the client sends its request later")
    pair = None if enrol else _keys(links[0], name, request, server is None)
    key = fingerprint(pair.public) if pair else ""
    new = amended(content, name, sector, key)
    if server is not None and target is not None:
        _write_client(target, name, _address(links, agreement, sector), server, new, pair)
    for folder in links:
        if folder.name == sector:
            _admit(folder, name, pair)
    for party in found:
        replace_agreement(party.path, new)
    if (directory / CA / FEDERATION).is_file():
        replace_agreement(directory / CA, new)
    public = target / "keys" / "node.pub" if target and pair else request
    names = tuple(party.name for party in found)
    up = tuple(f.name for f in links if f.name in ("server", sector) and status.read(f.state)["up"])
    everybody = {"server", *agreement.sectors, *agreement.sector_of} <= {*names}
    digest = hashlib.sha256(new).hexdigest()
    return Added(name, sector, digest, key, public, target, names, up, sector in names, everybody)


def requested_key(file: Path, name: str) -> bytes:
    """The public key that a new client has made itself, as a line in OpenSSH's form.

    Raises:
        ConfigError: the file holds no such key.
    """
    if not file.is_file():
        raise ConfigError(f"--request: there is no file {file}; give the public key of {name}, such as node.pub")
    key = node_key_of(file.read_bytes())
    if key is None or key.curve.name != "secp384r1":
        raise ConfigError(
            f"--request: {file} holds no public key on the curve P-384 in OpenSSH's form; `ssh-keygen -t ecdsa -b 384 "
            "-N '' -f node` makes node, which stays with the client, and node.pub, which is meant here"
        )
    return node_line(key, name).encode()


def _one_agreement(found: Sequence[FoundParty]) -> tuple[Agreement, bytes]:
    first, *others = (party.path / FEDERATION for party in found)
    agreement = Agreement.read(first)
    for other in others:
        if Agreement.read(other).sha256 != agreement.sha256:
            raise ConfigError(
                f"{other} is another one than {first}; bring both to the newer one, which has more amendments, first"
            )
    return agreement, first.read_bytes()


def _check(agreement: Agreement, content: bytes, name: str, sector: str) -> None:
    if name in agreement.sector_of:
        raise ConfigError(
            f"{name} is in this federation already, in {agreement.sector_of[name]}; if it comes late it only has to be "
            "started: headwater deploy join"
        )
    if name != (free := next_client(json.loads(content), agreement.config.partition.clients)):
        raise ConfigError(f"clients are numbered: the next one of this federation is {free}, got {name!r}")
    if sector not in agreement.sectors:
        known = [*agreement.sectors]
        raise ConfigError(f"--sector: there is no sector {sector!r}{nearest(sector, known)} (known: {listed(known)})")


def _keys(folder: PartyFolder, name: str, request: Path | None, elsewhere: bool) -> KeyPair | None:
    """The client's keys; without the private one if the client has it, None if the federation has no keys."""
    if folder.insecure:
        if request is not None:
            raise ConfigError("--request: this federation has insecure = true, and no keys; leave it out")
        return None
    need_cryptography()
    if request is not None:
        return KeyPair(b"", requested_key(request, name))
    if elsewhere:
        raise ConfigError(
            f"--request: give the public key of {name}, which the server's operator has; only where the server's "
            "folder is can a new key be made"
        )
    return node_keys(name)


def _address(folders: Sequence[PartyFolder], agreement: Agreement, sector: str) -> str:
    """Where clients reach the host of a sector: as its folder says if that is here, else as agreed."""
    for folder in folders:
        if folder.name == sector and folder.link:
            return folder.link.reach or folder.link.address
    return str(agreement.address_of(sector))


def _write_client(
    target: Path, name: str, joins: str, server: PartyFolder, agreed: bytes, pair: KeyPair | None
) -> None:
    draft = target.with_name(f".{name}.draft")
    draft.mkdir(mode=0o700)
    (draft / "keys").mkdir(mode=0o700)
    tables = {"above": {"address": joins}, "data": {"name": DATA}}
    settings = tomli_w.dumps({"role": "client", "name": name, "insecure": server.insecure, **tables})
    config = server.federation.config.to_toml()
    unit = UNIT_TEXT.format(unit=unit_name(name), role="client", name=name, pause=REJOIN)
    key = KEY_TEXT[2] if pair is None and not server.insecure else KEY_TEXT[pair is not None and not pair.private]
    readme = README_TEXT.format(name=name, version=__version__, key=key, joins=joins)
    files: dict[str, Any] = {PARTY: PARTY_HEAD + settings, FEDERATION: agreed, CONFIG: config, README: readme}
    files |= {unit_name(name): unit, COMPOSE: COMPOSE_TEXT.format(version=__version__, role="client", name=name)}
    if not server.insecure:
        files["keys/ca.crt"] = (server.keys / "ca.crt").read_bytes()
    if pair is not None:
        files["keys/node.pub"] = pair.public
        files |= {"keys/node.key": pair.private} if pair.private else {}
    for file, text in files.items():
        write_whole(draft / file, text)
        (draft / file).chmod(0o600 if file == "keys/node.key" else 0o644)
    draft.rename(target)


def _admit(host: PartyFolder, name: str, pair: KeyPair | None) -> None:
    """Have a host admit a client: its name in party.toml, its key in keys/members."""
    file = host.path / PARTY
    text = file.read_text(encoding="utf-8")
    wanted = parse_toml(text)
    wanted["link"]["members"] = [*wanted["link"]["members"], name]
    members = "".join(f'    "{member}",\n' for member in wanted["link"]["members"])
    changed = re.sub(r"(?ms)^members\s*=\s*\[.*?\]", f"members = [\n{members}]", text, count=1)
    if parse_toml(changed) != wanted:
        changed = PARTY_HEAD + tomli_w.dumps(wanted)
    if pair is not None:
        write_whole(host.keys / "members" / f"{name}.pub", pair.public)
    write_whole(file, changed)
