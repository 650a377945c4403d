"""Where a link is reached: a host and a port, as one text such as `fl.example.org:9100` or `[2001:db8::1]:9100`."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from headwater.errors import ConfigError

NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*")
PORTS = 65535
EXAMPLE = "'fl.example.org:9100' or '10.0.0.5:9100'"


class Address(NamedTuple):
    host: str
    port: int

    @staticmethod
    def parse(text: str, key: str) -> Address:
        """Read one, or say under which key it is wrong."""
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        try:
            number = int(port) if port.isascii() and port.isdigit() else 0
            good = bool(colon) and 0 < number <= PORTS and _is_host(host, bracketed)
        except ValueError:
            good = False
        if not good:
            raise ConfigError(f"{key} must be a host and a port, such as {EXAMPLE}, got {text!r}")
        return Address(host, number)

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """None if the host is a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host.lower() == "localhost" if self.ip is None else self.ip.is_loopback

    @property
    def everywhere(self) -> bool:
        """Whether it stands for all addresses of a machine, so that nobody can dial it."""
        return self.ip is not None and self.ip.is_unspecified

    @property
    def bound(self) -> Address:
        """What to listen at so that others get here. A name or an outer address need not be one of the machine's own
        (it may be a router's, or a container's host's), so all of its own are taken; loopback stays loopback."""
        if self.loopback:
            return self
        return Address("::" if self.ip is not None and self.ip.version == 6 else "0.0.0.0", self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(host: str, bracketed: bool) -> bool:
    if bracketed:
        return ipaddress.ip_address(host).version == 6
    if re.fullmatch(r"[0-9.]+", host):
        return ipaddress.ip_address(host).version == 4
    return NAME.fullmatch(host) is not None
