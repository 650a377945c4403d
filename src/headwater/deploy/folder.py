"""A party's folder: who it is, whom it speaks to, its keys, and the federation that it agreed to.

All that a party needs is in its folder, so that the folder can be copied to wherever the party is. What it makes while
it runs is below `state/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.config import Config
from headwater.config.fields import shown
from headwater.deploy.address import Address
from headwater.deploy.listing import PARTY, ROLES, natural
from headwater.errors import ConfigError, nearest

VERSION = 1
FEDERATION, CONFIG, PUBLIC, DATA = "federation.json", "config.toml", "public.value", "data.npz"
ANEW = "`headwater deploy init` makes a new set of folders"
NAMES = {"server": "server", "sector": r"s\d+", "client": r"c\d+"}
TABLES: dict[str, dict[str, type]] = {  # accepted keys and what they hold; "" is the top level
    "": {"role": str, "name": str, "insecure": bool, "above": dict, "link": dict, "data": dict},
    "above": {"address": str},
    "link": {"address": str, "reach": str, "members": list},
    "data": {"name": str},
}
NEEDED = {"server": ("link",), "sector": ("above", "link"), "client": ("above", "data")}
WORDS = {str: "a text", bool: "true or false", dict: "a table", list: "a list of names"}
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Served:
    """The link that a party runs."""

    address: str  # what it listens at
    members: tuple[str, ...]  # who may join
    reach: str = ""  # where members reach it, if not at the address itself


@dataclass(frozen=True)
class Federated:
    """What all parties agree on: the same file, byte for byte, in every folder."""

    config: Config
    shape: tuple[int, ...]
    classes: int
    words: int | None
    class_names: tuple[str, ...]
    sectors: dict[str, tuple[str, ...]]
    sha256: str
    names: dict[str, str] = field(default_factory=dict)  # what the data calls a client or sector, where it does
    preparation: dict[str, Any] = field(default_factory=dict)  # how a client reads data of its own: own.describe

    @staticmethod
    def read(path: Path) -> Federated:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise ConfigError(f"there is no {path}; bring back the one that all parties have, or {ANEW}") from None
        try:
            told = json.loads(content)
            if told["version"] != VERSION:
                raise ConfigError(
                    f"{path} is of version {shown(told['version'])}, and this Headwater reads version {VERSION}; "
                    "install the same Headwater at every party"
                )
            return Federated(
                config=Config.from_toml(told["config"]),
                shape=tuple(int(size) for size in told["shape"]),
                classes=int(told["classes"]),
                words=None if told["words"] is None else int(told["words"]),
                class_names=tuple(str(name) for name in told["class_names"]),
                sectors={str(sector): tuple(map(str, clients)) for sector, clients in told["sectors"].items()},
                sha256=hashlib.sha256(content).hexdigest(),
                names={str(party): str(name) for party, name in told.get("names", {}).items()},
                preparation={str(key): value for key, value in told.get("preparation", {}).items()},
            )
        except ConfigError as error:
            here = "; install at this party what the configuration names" if "be imported" in str(error) else ""
            raise ConfigError(f"{path}: {error}{here}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is not what `headwater deploy init` wrote ({type(error).__name__}: {error}); bring that back"
            ) from None

    def members_of(self, party: str) -> tuple[str, ...]:
        """Who is directly below: sectors of the server, clients of a sector."""
        return tuple(self.sectors) if party == "server" else self.sectors.get(party, ())


@dataclass(frozen=True)
class PartyFolder:
    path: Path
    name: str
    role: str
    insecure: bool
    above: str | None  # address of the link that it joins
    link: Served | None  # the link that it runs
    data: str | None  # a client's own data: a path from the root on, or "package.module:function"
    federation: Federated

    @property
    def state(self) -> Path:
        """What the party makes while it runs; for its own eyes."""
        return self.path / "state"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @staticmethod
    def open(path: Path) -> PartyFolder:
        """Read a folder and check all of it that can be wrong before anything is started."""
        path = Path(path).expanduser().absolute()
        file = path / PARTY
        told = _read(file)
        role, name = told["role"], told["name"]
        federation = Federated.read(path / FEDERATION)
        _check_copy(path / CONFIG, federation.config)
        _check_name(file, role, name, federation)
        insecure = told.get("insecure", False)
        above = Address.parse(told["above"]["address"], f"{file}: above.address") if "above" in told else None
        link = _served(file, told["link"], federation.members_of(name), name) if "link" in told else None
        made = PartyFolder(
            path=path,
            name=name,
            role=role,
            insecure=insecure,
            above=None if above is None else str(above),
            link=link,
            data=_data(path, told["data"]["name"]) if "data" in told else None,
            federation=federation,
        )
        if above is not None and above.everywhere:
            raise ConfigError(
                f"{file}: above.address {above} cannot be dialled; give the host of the link that is above"
            )
        if insecure:
            _check_loopback(file, made)
        else:
            _check_keys(made)
        if role == "server" and not (path / PUBLIC).is_file():
            raise ConfigError(f"there is no {path / PUBLIC}, which the server needs; bring it back, or {ANEW}")
        made.state.mkdir(mode=0o700, exist_ok=True)
        if os.name == "posix" and stat.S_IMODE(made.state.stat().st_mode) != 0o700:
            made.state.chmod(0o700)
        return made


def private_keys(folder: PartyFolder) -> list[Path]:
    """The files that nobody else may read."""
    names = (["link.key"] if folder.link else []) + (["node.key"] if folder.above else [])
    return [folder.keys / name for name in names]


def public_files(folder: PartyFolder) -> list[Path]:
    """The certificates and public keys that a party of this role needs."""
    names = ["ca.crt"] + (["link.crt"] if folder.link else []) + (["node.pub"] if folder.above else [])
    members = [folder.keys / "members" / f"{name}.pub" for name in (folder.link.members if folder.link else ())]
    return [*(folder.keys / name for name in names), *members]


def _read(file: Path) -> dict[str, Any]:
    if not file.parent.is_dir():
        raise ConfigError(
            f"there is no directory {file.parent}; name a party's folder, as `headwater deploy init` wrote it"
        )
    if not file.is_file():
        raise ConfigError(f"{file.parent} is not a party's folder, since it has no {PARTY}; {ANEW}")
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    _check_table(file, "", told)
    for key in ("role", "name"):
        if key not in told:
            raise ConfigError(f"{file} has no {key}; it begins with a role ({', '.join(ROLES)}) and a name")
    role = told["role"]
    if role not in ROLES:
        raise ConfigError(
            f"{file}: role must be {', '.join(ROLES[:-1])} or {ROLES[-1]}, got {role!r}{nearest(role, ROLES)}"
        )
    for table in ("above", "link", "data"):
        if table in told and table not in NEEDED[role]:
            raise ConfigError(f"{file}: [{table}] is not for a {role}; remove it")
        if table not in told and table in NEEDED[role]:
            raise ConfigError(f"{file} has no [{table}], which a {role} needs (keys: {', '.join(TABLES[table])})")
        if table in told:
            _check_table(file, table, told[table])
            for key in TABLES[table]:
                if key not in told[table] and key != "reach":
                    raise ConfigError(f"{file} has no {table}.{key}; a {role} needs it")
    return told


def _check_table(file: Path, table: str, told: Mapping[str, Any]) -> None:
    accepted = TABLES[table]
    for key, value in told.items():
        dotted = f"{table}.{key}" if table else key
        if key not in accepted:
            where = f"[{table}]" if table else "the top level"
            known = ", ".join(accepted)
            raise ConfigError(
                f"{file} has an unknown key {dotted!r}{nearest(key, accepted)} (accepted in {where}: {known})"
            )
        if not isinstance(value, accepted[key]) or (isinstance(value, str) and not value):
            raise ConfigError(f"{file}: {dotted} must be {WORDS[accepted[key]]}, got {shown(value)}")


def _check_name(file: Path, role: str, name: str, federation: Federated) -> None:
    known = {
        "server": ["server"],
        "sector": [*federation.sectors],
        "client": [client for clients in federation.sectors.values() for client in clients],
    }[role]
    if re.fullmatch(NAMES[role], name) is None or name not in known:
        raise ConfigError(
            f"{file}: there is no {role} {name!r} in this federation{nearest(name, known)}; {FEDERATION} knows "
            f"{_some(sorted(known, key=natural))}"
        )


def _served(file: Path, told: Mapping[str, Any], below: tuple[str, ...], name: str) -> Served:
    members = told["members"]
    if not members or not all(isinstance(member, str) for member in members) or len({*members}) < len(members):
        raise ConfigError(f"{file}: link.members must name parties, each once, got {shown(members)}")
    for member in members:
        if member not in below:
            raise ConfigError(
                f"{file}: link.members names {member!r}, which is not below {name} in this federation"
                f"{nearest(member, below)}; {FEDERATION} has {_some(below)} there"
            )
    address = str(Address.parse(told["address"], f"{file}: link.address"))
    reach = told.get("reach", "")
    if reach and Address.parse(reach, f"{file}: link.reach").everywhere:
        raise ConfigError(
            f"{file}: link.reach {reach} cannot be dialled; give the host that members reach this link at"
        )
    return Served(address, tuple(members), str(Address.parse(reach, f"{file}: link.reach")) if reach else "")


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


def _check_copy(file: Path, config: Config) -> None:
    """config.toml is there to be read; whoever changes it expects an effect, and it can have none at one party."""
    if not file.is_file():
        return
    try:
        same = Config.from_toml(file.read_text(encoding="utf-8")) == config
    except (ConfigError, UnicodeDecodeError):
        same = False
    if not same:
        raise ConfigError(
            f"{file} was changed, and it is only a copy to read: all parties work by {FEDERATION}, which must be the "
            f"same everywhere; bring the file back, or remove it; {ANEW} with other settings"
        )


def _check_loopback(file: Path, folder: PartyFolder) -> None:
    """Without keys anybody who gets to a link can join it."""
    for address in (folder.above, folder.link and folder.link.address, folder.link and folder.link.reach):
        if address and not Address.parse(address, "").loopback:
            raise ConfigError(
                f"{file}: insecure = true leaves out encryption and keys, so it is for 127.0.0.1 only, but there is "
                f"{address}; set insecure = false"
            )


def _check_keys(folder: PartyFolder) -> None:
    for file in (*private_keys(folder), *public_files(folder)):
        if not file.is_file():
            raise ConfigError(f"there is no {file}, which {folder.role} {folder.name} needs; bring it back, or {ANEW}")
    if os.name != "posix":
        return
    for file, mode in (*((key, "600") for key in private_keys(folder)), (folder.keys, "700")):
        if stat.S_IMODE(file.stat().st_mode) & OTHERS:
            what = "other users can get into" if mode == "700" else "other users can read or change"
            raise ConfigError(f"{what} {file}, and it is private; do: chmod {mode} {shlex.quote(str(file))}")


def _some(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
