"""What is asked of a party's folder here."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Protocol

from headwater.errors import ConfigError

VERSION = "1.41"


class Served(Protocol):
    """The link that a party runs."""

    @property
    def address(self) -> str: ...

    @property
    def members(self) -> tuple[str, ...]: ...


class PartyFolder(Protocol):
    """A party as it is written on its disk."""

    @property
    def path(self) -> Path: ...

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def state(self) -> Path: ...

    @property
    def keys(self) -> Path: ...

    @property
    def insecure(self) -> bool: ...

    @property
    def above(self) -> str | None: ...

    @property
    def link(self) -> Served | None: ...


def need() -> None:
    """Flower is an extra, and is loaded only in processes of its own: say at once if it is not there.

    Its inside is used, and a link that is guarded in one version might stand open in another.
    """
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        found = None
    if found is None or not found.startswith(f"{VERSION}."):
        lack = "which is not installed" if found is None else f"version {VERSION}; {found} is installed"
        raise ConfigError(f"links between parties need Flower, {lack}: pip install 'headwater[flower]'")


def host_port(address: str) -> tuple[str, int]:
    """The two halves of host:port; an IPv6 host may stand in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is not an address; write host:port, as in 127.0.0.1:9100")
    return host.strip("[]"), int(port)
