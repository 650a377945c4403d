"""What parties exchange and how they reach each other: addresses, messages and the two ends of a link.

The lower party connects to the upper one: clients to the host of their sector, hosts to the server. After that the
upper party asks and the lower one answers. A `Downlink` is the upper end of a link, an `Uplink` the lower one.
`headwater.deploy.flower` implements both.
"""

from __future__ import annotations

import ipaddress
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headwater.errors import ConfigError

NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*")
PORTS = 65535
EXAMPLE = "'fl.example.org:9100' or '10.0.0.5:9100'"


class Address(NamedTuple):
    """Host and port of a link, written as `fl.example.org:9100` or `[2001:db8::1]:9100`."""

    host: str
    port: int

    @staticmethod
    def parse(text: str, key: str) -> Address:
        """Read an address.

        Args:
            text: `host:port`; an IPv6 host needs brackets.
            key: the setting that it comes from, named in the error.

        Raises:
            ConfigError: if it is not a host and a port.
        """
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
    def wildcard(self) -> bool:
        """Whether it means all addresses of a machine (0.0.0.0 or ::), to which no party can connect."""
        return self.ip is not None and self.ip.is_unspecified

    @property
    def listen_address(self) -> Address:
        """The address to listen at. A public name or address may belong to a router or to a container's host, so the
        link listens on all interfaces; a loopback address stays as it is."""
        if self.loopback:
            return self
        return Address("::" if self.ip is not None and self.ip.version == 6 else "0.0.0.0", self.port)

    def of_sector(self, number: int) -> Address:
        """Of a server's address: where the link of a sector is unless it is set, on the ports after the server's."""
        return Address(self.host, self.port + 1 + number)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(host: str, bracketed: bool) -> bool:
    if bracketed:
        return ipaddress.ip_address(host).version == 6
    if re.fullmatch(r"[0-9.]+", host):
        return ipaddress.ip_address(host).version == 4
    return NAME.fullmatch(host) is not None


class RawArray(NamedTuple):
    """One array as it was received, not checked yet."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Message:
    """A request or a reply. Nothing in it is ever executed.

    Args:
        head: control data that JSON can hold.
        parts: the payload.
        most: of a request, the largest payload of its reply; it is not sent. None: whatever the link accepts.
    """

    head: dict[str, Any]
    parts: tuple[RawArray, ...] = ()
    most: int | None = None

    @property
    def payload(self) -> int:
        """Bytes of all arrays."""
        return sum(len(part.data) for part in self.parts)


class Unanswered(Exception):  # noqa: N818 (stands in place of a reply)
    """The reason why there is no reply, as part of a sentence."""

    def about(self, name: str) -> str:
        """The reason as it follows the party's name in a sentence; links name the party, say `it`, or speak of
        something else."""
        reason = str(self)
        for subject in ("it", name):
            if reason.startswith(f"{subject} "):
                return reason.removeprefix(f"{subject} ")
        if reason.startswith(("the ", "its ", "what ")):
            return f"did not answer ({reason})"
        return reason or "did not answer"


@dataclass(frozen=True)
class Visitor:
    """A node that was refused at a link although it proved that it owns its key.

    Args:
        key: fingerprint of its public key, as `ssh-keygen -l` prints it.
        name: of the member with this key; empty for a stranger.
        attempts: how often it came.
        first: when it first came, as `time.time`.
        last: when it came last.
    """

    key: str
    name: str
    attempts: int
    first: float
    last: float

    @property
    def sentence(self) -> str:
        """For the log."""
        if not self.name:
            return f"a stranger with the key {self.key} asked to join this link and was refused"
        return (
            f"somebody with the key of {self.name} ({self.key}) asked to join while {self.name} is connected and was "
            f"refused: {self.name} was started again less than a minute ago, or somebody has a copy of its key"
        )


class Downlink(Protocol):
    """The upper end of a link: the server's to its sectors, a sector host's to its clients."""

    def present(self) -> frozenset[str]:
        """Names of the members that are connected now."""

    def send(self, to: str, message: Message, seconds: float | None = None) -> int:
        """Queue a request without waiting. Returns the number of this exchange.

        Args:
            to: name of a member.
            message: the request.
            seconds: how long the caller will wait for the reply, for the operator to see; None for no limit.
        """

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        """Replies that have arrived, by number of the exchange. Waits up to `seconds` for the first."""

    def forget(self, number: int) -> None:
        """Ignore the reply of this exchange if it still arrives."""

    def revoke(self, name: str) -> None:
        """Admit a member no longer, from now on."""

    def visitors(self) -> list[Visitor]:
        """Nodes that were refused since the last call."""

    @property
    def up(self) -> bool:
        """Whether members can reach it."""

    def close(self) -> None: ...


class Uplink(Protocol):
    """The lower end of a link: a sector host's to the server, a client's to its sector's host."""

    def serve(self, answer: Callable[[Message], Message], stop: threading.Event) -> None:
        """Answer requests one at a time until `stop` is set."""

    @property
    def up(self) -> bool:
        """Whether the process that connects to the party above is running."""

    def close(self) -> None: ...


def ask(link: Downlink, names: list[str], message: Message, seconds: float) -> dict[str, Message]:
    """Send one message to several parties. Returns the replies that came in time, by name."""
    waiting = {link.send(name, message, seconds): name for name in names}
    replies: dict[str, Message] = {}
    until = time.monotonic() + seconds
    while waiting and time.monotonic() < until:
        for number, reply in link.replies(min(1.0, max(0.0, until - time.monotonic()))):
            name = waiting.pop(number, None)
            if name is not None and isinstance(reply, Message):
                replies[name] = reply
    for number in waiting:
        link.forget(number)
    return replies
