"""A party's folder: its role and name, the links it runs and joins, its keys, and the agreement of the federation.

All that a party needs is in its folder, so that the folder can be copied to the party's machine. What the party writes
while it runs is in `state/`. `find` reads `party.toml` only and loads nothing heavy; `PartyFolder.open` checks all.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.core.records import parse_toml
from headwater.deploy.transport import Address
from headwater.errors import ConfigError, nearest

if TYPE_CHECKING:
    from headwater.deploy.agreement import Agreement

PARTY, FEDERATION, CONFIG = "party.toml", "federation.json", "config.toml"
PUBLIC, DATA = "public.value", "data.npz"
INIT_AGAIN = "`headwater deploy init` makes a new set of folders"
NAMES = {"server": "server", "sector": r"s\d+", "client": r"c\d+"}  # by role
ROLES = tuple(NAMES)
TABLES: dict[str, dict[str, type]] = {  # accepted keys and their types; "" is the top level
    "": {"role": str, "name": str, "insecure": bool, "device": str, "above": dict, "link": dict, "data": dict},
    "above": {"address": str},
    "link": {"address": str, "reach": str, "members": list},
    "data": {"name": str},
}
NEEDED = {"server": ("link",), "sector": ("above", "link"), "client": ("above", "data")}
WORDS = {str: "a text", bool: "true or false", dict: "a table", list: "a list of names"}


class FoundParty(NamedTuple):
    """A party's folder and what the first lines of its `party.toml` say."""

    path: Path
    name: str
    role: str

    @property
    def state(self) -> Path:
        return self.path / "state"


def find(path: Path) -> list[FoundParty]:
    """The party whose folder this is or, if it holds several folders, all of them: server, sectors, clients.

    Raises:
        ConfigError: if there is no party's folder, or a `party.toml` has no valid role and name.
    """
    if not path.is_dir():
        raise ConfigError(f"there is no directory {path}; name a party's folder, or the one that `deploy init` wrote")
    if (path / PARTY).is_file():
        return [_found(path)]
    parties = [_found(folder) for folder in path.iterdir() if (folder / PARTY).is_file()]
    if not parties:
        raise ConfigError(
            f"{path} is no party's folder and holds none (there is no {PARTY}); `headwater deploy init` writes them"
        )
    return sorted(parties, key=lambda party: (ROLES.index(party.role), natural_order(party.name)))


def natural_order(name: str) -> tuple[str, int]:
    """A sort key that puts c2 before c10."""
    digits = re.search(r"\d+$", name)
    return (name[: digits.start()], int(digits.group())) if digits else (name, -1)


def _found(folder: Path) -> FoundParty:
    file = folder / PARTY
    fields = _toml(file)
    role, name = fields.get("role"), fields.get("name")
    if role not in ROLES or not isinstance(name, str) or not name:
        raise ConfigError(
            f"{file} needs a role ({', '.join(ROLES)}) and a name, as `headwater deploy init` writes them"
        )
    return FoundParty(folder, name, role)


def _toml(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


@dataclass(frozen=True)
class LinkSettings:
    """The link that a party runs.

    Args:
        address: where it listens.
        members: parties that may join.
        reach: where members reach it, if not at `address`.
    """

    address: str
    members: tuple[str, ...]
    reach: str = ""


@dataclass(frozen=True)
class PartyFolder:
    """A party as its folder describes it.

    Args:
        insecure: without encryption and keys, on loopback only.
        above: address of the link that it joins; None for the server.
        link: the link that it runs; None for a client. Members that were revoked are not among its members.
        data: a client's own data, as an absolute path or `package.module:function`; None for others.
        device: what this party computes on, as `engine.device`; nobody else decides that.
    """

    path: Path
    name: str
    role: str
    insecure: bool
    above: str | None
    link: LinkSettings | None
    data: str | None
    federation: Agreement
    device: str = "auto"

    @property
    def state(self) -> Path:
        """What the party writes while it runs; readable by its owner only."""
        return self.path / "state"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def members(self) -> tuple[str, ...]:
        """Parties that may join the link of this one; none for a client."""
        return self.link.members if self.link else ()

    @staticmethod
    def open(path: Path, *, keys_needed: bool = True) -> PartyFolder:
        """Read a folder and check all of it; a ConfigError names the file and what to do.

        Args:
            keys_needed: whether all key files must be there; they are not while a party enrols.
        """
        from headwater.deploy import key_check
        from headwater.deploy.agreement import Agreement, check_copy

        path = Path(path).expanduser().absolute()
        file = path / PARTY
        fields = _read(file)
        role, name = fields["role"], fields["name"]
        federation = Agreement.read(path / FEDERATION)
        check_copy(path / CONFIG, federation.config)
        _check_name(file, role, name, federation)
        above = Address.parse(fields["above"]["address"], f"{file}: above.address") if "above" in fields else None
        folder = PartyFolder(
            path=path,
            name=name,
            role=role,
            insecure=fields.get("insecure", False),
            above=None if above is None else str(above),
            link=_link(file, fields["link"], federation.members_of(name), name) if "link" in fields else None,
            data=_data(path, fields["data"]["name"]) if "data" in fields else None,
            federation=federation,
            device=fields.get("device", "auto"),
        )
        if above is not None and above.wildcard:
            raise ConfigError(
                f"{file}: above.address {above} cannot be dialled; give the host of the link that is above"
            )
        if folder.insecure:
            _check_loopback(file, folder)
        elif keys_needed:
            key_check.check_files(folder)
        if role == "server" and not (path / PUBLIC).is_file():
            raise ConfigError(f"there is no {path / PUBLIC}, which the server needs; bring it back, or {INIT_AGAIN}")
        folder.state.mkdir(mode=0o700, exist_ok=True)
        if os.name == "posix" and stat.S_IMODE(folder.state.stat().st_mode) != 0o700:
            folder.state.chmod(0o700)
        return folder


def _read(file: Path) -> dict[str, Any]:
    if not file.parent.is_dir():
        raise ConfigError(
            f"there is no directory {file.parent}; name a party's folder, as `headwater deploy init` wrote it"
        )
    if not file.is_file():
        raise ConfigError(f"{file.parent} is not a party's folder, since it has no {PARTY}; {INIT_AGAIN}")
    fields = _toml(file)
    _check_table(file, "", fields)
    for key in ("role", "name"):
        if key not in fields:
            raise ConfigError(f"{file} has no {key}; it begins with a role ({', '.join(ROLES)}) and a name")
    role = fields["role"]
    if role not in ROLES:
        raise ConfigError(
            f"{file}: role must be {', '.join(ROLES[:-1])} or {ROLES[-1]}, got {role!r}{nearest(role, ROLES)}"
        )
    for table in ("above", "link", "data"):
        if table in fields and table not in NEEDED[role]:
            raise ConfigError(f"{file}: [{table}] is not for a {role}; remove it")
        if table not in fields and table in NEEDED[role]:
            raise ConfigError(f"{file} has no [{table}], which a {role} needs (keys: {', '.join(TABLES[table])})")
        if table in fields:
            _check_table(file, table, fields[table])
            for key in TABLES[table]:
                if key not in fields[table] and key != "reach":
                    raise ConfigError(f"{file} has no {table}.{key}; a {role} needs it")
    return fields


def _check_table(file: Path, table: str, fields: Mapping[str, Any]) -> None:
    from headwater.config.fields import shown

    accepted = TABLES[table]
    for key, value in fields.items():
        dotted = f"{table}.{key}" if table else key
        if key not in accepted:
            where = f"[{table}]" if table else "the top level"
            known = ", ".join(accepted)
            raise ConfigError(
                f"{file} has an unknown key {dotted!r}{nearest(key, accepted)} (accepted in {where}: {known})"
            )
        if not isinstance(value, accepted[key]) or (isinstance(value, str) and not value):
            raise ConfigError(f"{file}: {dotted} must be {WORDS[accepted[key]]}, got {shown(value)}")


def _check_name(file: Path, role: str, name: str, federation: Agreement) -> None:
    known = {"server": ["server"], "sector": [*federation.sectors], "client": [*federation.sector_of]}[role]
    if re.fullmatch(NAMES[role], name) is None or name not in known:
        raise ConfigError(
            f"{file}: there is no {role} {name!r} in this federation{nearest(name, known)}; {FEDERATION} knows "
            f"{listed(sorted(known, key=natural_order))}"
        )


def _link(file: Path, fields: Mapping[str, Any], below: tuple[str, ...], name: str) -> LinkSettings:
    from headwater.config.fields import shown

    members = fields["members"]
    if not members or not all(isinstance(member, str) for member in members) or len({*members}) < len(members):
        raise ConfigError(f"{file}: link.members must name parties, each once, got {shown(members)}")
    for member in members:
        if member not in below:
            raise ConfigError(
                f"{file}: link.members names {member!r}, which is not below {name} in this federation"
                f"{nearest(member, below)}; {FEDERATION} has {listed(below)} there"
            )
    address = str(Address.parse(fields["address"], f"{file}: link.address"))
    reach = str(Address.parse(fields["reach"], f"{file}: link.reach")) if fields.get("reach") else ""
    if reach and Address.parse(reach, "").wildcard:
        raise ConfigError(
            f"{file}: link.reach {reach} cannot be dialled; give the host that members reach this link at"
        )
    keys = file.parent / "keys"
    return LinkSettings(address, tuple(m for m in members if not revoked_key(keys, m).exists()), reach)


def revoked_key(keys: Path, member: str) -> Path:
    """Where the key of a member is after it was revoked."""
    return keys / "revoked" / f"{member}.pub"


def _data(folder: Path, name: str) -> str:
    path = Path(name).expanduser()
    path = path if path.is_absolute() else folder / path
    if path.exists():
        return str(path)
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        return name
    raise ConfigError(
        f"{folder / PARTY}: data.name is {name!r}, but there is no {path}; name this client's own data, by a path from "
        "this folder or from the root on"
    )


def _check_loopback(file: Path, folder: PartyFolder) -> None:
    """Refuse `insecure` on other addresses: without keys anybody who reaches a link can join it."""
    for address in (folder.above, folder.link and folder.link.address, folder.link and folder.link.reach):
        if address and not Address.parse(address, "").loopback:
            raise ConfigError(
                f"{file}: insecure = true leaves out encryption and keys, so it is for 127.0.0.1 only, but there is "
                f"{address}; set insecure = false"
            )


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names as text: at most so many, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
