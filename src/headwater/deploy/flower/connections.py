"""Bounds on the connections of a SuperLink, and on what is read from a caller before its signature is checked.

Flower reads the body of a request before it checks the signature, and accepts any number of connections that never
send one. Here the signature is checked when the headers have arrived, and only the bodies of members are read. A
connection without a request of a member is closed after `UNKNOWN_SECONDS`, or earlier if there are too many.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
from base64 import b64decode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.superlink.routers.fleet import node_auth
from uvicorn.protocols.http.auto import AutoHTTPProtocol

UNKNOWN_SECONDS = 15.0  # for the handshake, and again for the first request
FREE, PER_MEMBER = 64, 16  # open connections: so many, and so many more for each member
HEADER_BYTES = 64 << 10  # of a request


class MemberKeys:
    """The public keys of the members, and whether a request was signed with one of them.

    Args:
        files: file of the public key, by name.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.pem = {name: _pem(Path(file)) for name, file in files.items()}

    def revoke(self, name: str) -> None:
        self.pem.pop(name, None)

    def signed(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether these headers are of a member. Flower checks this again, with the name that the request claims."""
        return _claimed(headers) in self.pem.values() and _proved(headers, verified)

    def stranger(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """The public key of a caller that is no member and has proved that it owns this key, else None."""
        key = _claimed(headers)
        return key if key not in self.pem.values() and _proved(headers, verified.__wrapped__) else None


def _claimed(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The public key that these headers name; None without one."""
    try:
        return b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
    except (KeyError, ValueError):
        return None


def _proved(headers: Mapping[bytes, bytes], check: Callable[[bytes, bytes, bytes], bool]) -> bool:
    """Whether these headers were signed just now with the key that they name."""
    try:
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
        stamp = headers[TIMESTAMP_HEADER.encode()].decode("ascii")
        age = (now() - datetime.datetime.fromisoformat(stamp)).total_seconds()
        fresh = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return fresh and check(_claimed(headers) or b"", stamp.encode(), signature)
    except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        return False


def _pem(file: Path) -> bytes:
    key = serialization.load_ssh_public_key(file.read_bytes())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@functools.lru_cache(maxsize=1024)
def verified(pem: bytes, stamp: bytes, signature: bytes) -> bool:
    """Whether a signature was made with this key. Cached, since Flower checks the signature of a request again."""
    return verify_signature(bytes_to_public_key(pem), stamp, signature)


class OpenConnections:
    """All connections of the link, from before the TLS handshake on, the oldest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.all: dict[BoundedProtocol, None] = {}
        self.by_caller: dict[tuple[str, int], BoundedProtocol] = {}

    def admit(self, new: BoundedProtocol) -> None:
        """Count a new connection. If there are too many, the oldest without a request of a member is closed.

        Raises:
            ConnectionRefusedError: if all of them belong to members.
        """
        while len(self.all) >= self.most:
            oldest = next((each for each in self.all if not each.known), None)
            if oldest is None:
                raise ConnectionRefusedError("too many connections")
            oldest.abandon()
        self.all[new] = None

    def know(self, caller: Any) -> None:
        """Mark the connection of this caller (host and port) as that of a member."""
        protocol = self.by_caller.get(tuple(caller)) if caller else None
        if protocol is not None:
            protocol.known = True


OPEN = OpenConnections(FREE)


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed if no request of a member arrives on it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.known, self.received = False, 0
        self.handshake: Any = None  # the transport, before there is a connection
        self._watch: asyncio.TimerHandle | None = None
        OPEN.admit(self)
        super().__init__(*args, **more)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.client is not None:
            OPEN.by_caller[self.client] = self
        self._watch = self.loop.call_later(UNKNOWN_SECONDS, self._check)

    def connection_lost(self, error: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self.client is not None and OPEN.by_caller.get(self.client) is self:
            del OPEN.by_caller[self.client]
        OPEN.all.pop(self, None)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if not self.known and self.received > HEADER_BYTES + len(data):
            self.abandon()
            return
        super().data_received(data)

    def abandon(self) -> None:
        OPEN.all.pop(self, None)
        transport = self.transport or self.handshake
        if transport is not None:
            transport.abort()

    def _check(self) -> None:
        if not self.known:
            self.abandon()


def install(members: int) -> None:
    """Bound the connections of the SuperLink that this process starts.

    Args:
        members: how many there are.
    """
    OPEN.most = FREE + PER_MEMBER * members
    vars(node_auth).update(bytes_to_public_key=bytes, verify_signature=verified)
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = UNKNOWN_SECONDS  # type: ignore[attr-defined]
    # The event loop of the standard library makes the protocol, and so counts a connection, before the handshake.
    uvicorn.run = functools.partial(uvicorn.run, http=BoundedProtocol, loop="asyncio")
    make = asyncio.SelectorEventLoop._make_ssl_transport  # type: ignore[attr-defined]

    def make_known(loop: Any, raw: Any, protocol: Any, *args: Any, **more: Any) -> Any:
        transport = make(loop, raw, protocol, *args, **more)
        if isinstance(protocol, BoundedProtocol):
            protocol.handshake = transport
        return transport

    asyncio.SelectorEventLoop._make_ssl_transport = make_known  # type: ignore[attr-defined]
