"""The party folders there are at a path, told by their party.toml alone: nothing heavy is loaded to look at them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from headwater.errors import ConfigError

PARTY = "party.toml"
ROLES = ("server", "sector", "client")


class Found(NamedTuple):
    path: Path
    name: str
    role: str

    @property
    def state(self) -> Path:
        return self.path / "state"


def natural(name: str) -> tuple[str, int]:
    """c2 comes before c10."""
    digits = re.search(r"\d+$", name)
    return (name[: digits.start()], int(digits.group())) if digits else (name, -1)


def find(path: Path) -> list[Found]:
    """The party whose folder this is or, where several are below it, all of them: server, sectors, clients."""
    if not path.is_dir():
        raise ConfigError(f"there is no directory {path}; name a party's folder, or the one that `deploy init` wrote")
    if (path / PARTY).is_file():
        return [_read(path)]
    parties = [_read(folder) for folder in path.iterdir() if (folder / PARTY).is_file()]
    if not parties:
        raise ConfigError(
            f"{path} is no party's folder and holds none (there is no {PARTY}); `headwater deploy init` writes them"
        )
    return sorted(parties, key=lambda party: (ROLES.index(party.role), natural(party.name)))


def _read(folder: Path) -> Found:
    file = folder / PARTY
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    role, name = told.get("role"), told.get("name")
    if role not in ROLES or not isinstance(name, str) or not name:
        raise ConfigError(
            f"{file} needs a role ({', '.join(ROLES)}) and a name, as `headwater deploy init` writes them"
        )
    return Found(folder, name, role)
