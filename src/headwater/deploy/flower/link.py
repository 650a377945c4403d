"""Downwards over Flower: the party runs a SuperLink that its members join."""

from __future__ import annotations

import errno
import itertools
import socket
import threading
import time
from typing import Any

from headwater.deploy.flower.folder import PartyFolder, host_port, need
from headwater.deploy.flower.kept import Kept
from headwater.deploy.message import Message, Unanswered
from headwater.errors import ConfigError

MAX_BYTES = 2048 << 20
START = 90.0  # seconds in which a link must be up
FREE = 15.0  # seconds in which the process before this one must have let go of the address
ANY = {"0.0.0.0": "127.0.0.1", "::": "localhost"}  # what the link's certificate is good for besides its own host


class FlowerLink:
    """Implements `Link`. It is up when the constructor returns."""

    def __init__(self, folder: PartyFolder, max_bytes: int = MAX_BYTES) -> None:
        need()
        if folder.link is None:
            raise ConfigError(f"{folder.path} has no [link]: this party has nobody below it")
        self._max_bytes = max_bytes
        self._lock = threading.Condition()
        self._numbers = itertools.count(1)
        self._open: set[int] = set()
        self._come: list[tuple[int, Message | Unanswered]] = []
        self._present: frozenset[str] = frozenset()
        self._ready = False
        self._failed: str | None = None
        host, port = host_port(folder.link.address)
        _free(host, port)
        facts = self._facts(folder)
        self._kept = Kept("superlink", "headwater.deploy.flower.down", facts, folder.state, self._hear, self._lost)
        with self._lock:
            self._lock.wait_for(lambda: self._ready or self._failed is not None, START)
        if not self._ready:
            self.close()
            raise ConfigError(f"the link at {folder.link.address} did not start: {self._failed or 'it took too long'}")

    def _facts(self, folder: PartyFolder) -> dict[str, Any]:
        assert folder.link is not None
        host, port = host_port(folder.link.address)
        near = ANY.get(host, host)
        words = ["--host", host, "--port", str(port), "--isolation", "process"]
        if folder.insecure:
            words.append("--insecure")
        else:
            keys = folder.keys.resolve()
            words += ["--enable-supernode-auth", "--ssl-ca-certfile", str(keys / "ca.crt")]
            words += ["--ssl-certfile", str(keys / "link.crt"), "--ssl-keyfile", str(keys / "link.key")]
        members = {name: str((folder.keys / "members" / f"{name}.pub").resolve()) for name in folder.link.members}
        return {
            "words": words,
            "dial": f"[{near}]:{port}" if ":" in near else f"{near}:{port}",
            "ca": None if folder.insecure else str((folder.keys / "ca.crt").resolve()),
            "members": members,
            "max_bytes": self._max_bytes,
        }

    def present(self) -> frozenset[str]:
        with self._lock:
            return self._present

    def send(self, to: str, message: Message) -> int:
        with self._lock:
            number = next(self._numbers)
            if not self._ready:
                self._settle(number, Unanswered("the link is not up"))
            elif message.payload > self._max_bytes:
                limit = f"{self._max_bytes / 1e6:g} MB"
                self._settle(number, Unanswered(f"the message is larger than the {limit} that are accepted"))
            else:
                self._open.add(number)
                self._kept.tell({"number": number, "to": to}, message)
            return number

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        with self._lock:
            self._lock.wait_for(lambda: self._come, seconds)
            come, self._come = self._come, []
            return come

    def forget(self, number: int) -> None:
        with self._lock:
            self._open.discard(number)
            self._come = [entry for entry in self._come if entry[0] != number]
            if self._ready:
                self._kept.tell({"forget": number})

    def close(self) -> None:
        self._kept.close()
        self._lost("the link has been closed")

    # In the thread that keeps the process

    def _hear(self, frame: dict[str, Any], message: Message | None) -> None:
        with self._lock:
            match frame["say"]:
                case "ready":
                    self._ready = True
                    self._lock.notify_all()
                case "present":
                    self._present = frozenset(frame["names"])
                case "reply" | "unanswered" if frame["number"] in self._open:
                    self._open.discard(frame["number"])
                    self._settle(frame["number"], message or Unanswered(frame["reason"]))

    def _lost(self, reason: str) -> None:
        with self._lock:
            self._ready, self._present = False, frozenset()
            self._failed = reason
            for number in sorted(self._open):
                self._settle(number, Unanswered("the link broke down meanwhile"))
            self._open.clear()
            self._lock.notify_all()

    def _settle(self, number: int, answer: Message | Unanswered) -> None:
        self._come.append((number, answer))
        self._lock.notify_all()


def _free(host: str, port: int) -> None:
    """Say at once that an address cannot be bound to, before a SuperLink is started over and over."""
    family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    end = time.monotonic() + FREE
    while True:
        with socket.socket(family, kind, proto) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                return trial.bind(where)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                    raise ConfigError(
                        f"the link cannot be opened at {host}:{port} ({error.strerror}); "
                        "change [link] address in party.toml, or end what uses it"
                    ) from error
        time.sleep(0.2)
