"""The two ends of a link over Flower, in the party's process.

`FlowerDownlink` runs a SuperLink, which members join; `FlowerUplink` runs a SuperNode, which joins it.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from headwater.deploy.flower.child_process import FlowerProcess
from headwater.deploy.flower.waiting import AGAIN, TICK, Patience, await_free
from headwater.deploy.quoting import public
from headwater.deploy.transport import Address, Message, Unanswered, Visitor
from headwater.errors import ConfigError, said

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder

VERSION = "1.41"  # of Flower
MAX_BYTES = 2048 << 20
ANY = {"0.0.0.0": "127.0.0.1", "::": "localhost"}  # hosts besides its own that a link's certificate is valid for


def need_flower() -> None:
    """Raise ConfigError unless the right version of Flower is installed.

    Its internals are used, and a link that is guarded in one version might be open in another. Flower itself is loaded
    in child processes only.
    """
    try:
        installed = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        installed = None
    if installed is None or not installed.startswith(f"{VERSION}."):
        lack = "which is not installed" if installed is None else f"version {VERSION}; {installed} is installed"
        raise ConfigError(f"links between parties need Flower, {lack}: pip install 'headwater[flower]'")


class FlowerDownlink:
    """Implements `Downlink`. The link is up when the constructor returns, however long that takes.

    Args:
        folder: of the party that runs the link.
        max_bytes: largest payload of a message, in both directions.
        say: takes a sentence about what it waits for.

    Raises:
        ConfigError: only for a mistake in the folder. Anything else may pass, and is waited for.
    """

    def __init__(
        self, folder: PartyFolder, max_bytes: int = MAX_BYTES, say: Callable[[str], None] = lambda sentence: None
    ) -> None:
        need_flower()
        if folder.link is None:
            raise ConfigError(f"{folder.path} has no [link]: this party has nobody below it")
        self._max_bytes = max_bytes
        self._lock = threading.Condition()
        self._numbers = itertools.count(1)
        self._open: set[int] = set()
        self._arrived: list[tuple[int, Message | Unanswered]] = []
        self._visitors: list[Visitor] = []
        self._present: frozenset[str] = frozenset()
        self._ready = False
        self._say = Patience(say)
        self._where = folder.link.address
        address = Address.parse(folder.link.address, "link.address")
        await_free(address, self._say)
        settings = {
            "words": _superlink_options(folder, address),
            "dial": str(Address(ANY.get(address.host, address.host), address.port)),
            "ca": None if folder.insecure else str((folder.keys / "ca.crt").resolve()),
            "members": {name: str((folder.keys / "members" / f"{name}.pub").resolve()) for name in folder.members},
            "max_bytes": max_bytes,
        }
        module = "headwater.deploy.flower.superlink"
        self._process = FlowerProcess("superlink", module, settings, folder.state, self._on_frame, self._on_exit)
        try:
            with self._lock:
                while not self._lock.wait_for(lambda: self._ready, AGAIN):
                    self._say(f"the link at {self._where} is not up yet; waiting for Flower")
        except BaseException:  # Ctrl-C
            self._process.close()
            raise

    def present(self) -> frozenset[str]:
        with self._lock:
            return self._present

    def send(self, to: str, message: Message, seconds: float | None = None) -> int:
        with self._lock:
            number = next(self._numbers)
            if not self._ready:
                self._settle(number, Unanswered("the link is not up"))
            elif message.payload > self._max_bytes:
                self._settle(number, Unanswered(f"the message is {_too_large(self._max_bytes)}"))
            else:
                self._open.add(number)
                self._process.send({"number": number, "to": to, "most": message.most}, message)
            return number

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        with self._lock:
            self._lock.wait_for(lambda: self._arrived, seconds)
            arrived, self._arrived = self._arrived, []
            return arrived

    def forget(self, number: int) -> None:
        with self._lock:
            self._open.discard(number)
            self._arrived = [entry for entry in self._arrived if entry[0] != number]
            if self._ready:
                self._process.send({"forget": number})

    def revoke(self, name: str) -> None:
        with self._lock:
            self._present -= {name}
            self._process.settings["members"].pop(name, None)
            if self._ready:
                self._process.send({"revoke": name})

    def visitors(self) -> list[Visitor]:
        with self._lock:
            visitors, self._visitors = self._visitors, []
            return visitors

    @property
    def up(self) -> bool:
        with self._lock:
            return self._ready

    def close(self) -> None:
        self._process.close()
        self._lose_all()

    def _on_frame(self, frame: dict[str, Any], message: Message | None) -> None:
        with self._lock:
            match frame["say"]:
                case "ready":
                    self._ready = True
                    self._lock.notify_all()
                case "present":
                    self._present = frozenset(frame["names"]) & self._process.settings["members"].keys()
                case "visitor":
                    now = time.time()
                    self._visitors.append(Visitor(frame["key"], frame["name"], frame["attempts"], now, now))
                case "reply" | "unanswered" if frame["number"] in self._open:
                    self._open.discard(frame["number"])
                    self._settle(frame["number"], message or Unanswered(frame["reason"]))

    def _on_exit(self, reason: str) -> None:
        self._say(f"the link at {self._where} is down and is opened again: {reason}")
        self._lose_all()

    def _lose_all(self) -> None:
        with self._lock:
            self._ready, self._present = False, frozenset()
            for number in sorted(self._open):
                self._settle(number, Unanswered("the link broke down meanwhile"))
            self._open.clear()
            self._lock.notify_all()

    def _settle(self, number: int, answer: Message | Unanswered) -> None:
        self._arrived.append((number, answer))
        self._lock.notify_all()


def _superlink_options(folder: PartyFolder, address: Address) -> list[str]:
    options = ["--host", address.host, "--port", str(address.port), "--isolation", "process"]
    if folder.insecure:
        return [*options, "--insecure"]
    keys = folder.keys.resolve()
    options += ["--enable-supernode-auth", "--ssl-ca-certfile", str(keys / "ca.crt")]
    return [*options, "--ssl-certfile", str(keys / "link.crt"), "--ssl-keyfile", str(keys / "link.key")]


class FlowerUplink:
    """Implements `Uplink`. It keeps trying to connect while the party above is not up.

    Args:
        folder: of the party that joins.
        max_bytes: largest payload of a message, in both directions.
        say: takes a sentence about what it waits for.
    """

    def __init__(
        self, folder: PartyFolder, max_bytes: int = MAX_BYTES, say: Callable[[str], None] = lambda sentence: None
    ) -> None:
        need_flower()
        if folder.above is None:
            raise ConfigError(f"{folder.path} has no [above]: this party has nobody above it")
        Address.parse(folder.above, "above.address")
        options = ["--superlink", folder.above, "--node-config", f'name="{folder.name}"']
        if folder.insecure:
            options.append("--insecure")
        else:
            keys = folder.keys.resolve()
            options += ["--root-certificates", str(keys / "ca.crt")]
            options += ["--auth-supernode-private-key", str(keys / "node.key")]
        self._max_bytes, self._say, self._above = max_bytes, Patience(say), folder.above
        self._requests: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._life = 0  # counts child processes; a reply is only for the one that passed on the request
        settings = {"words": options, "name": folder.name, "max_bytes": max_bytes}
        module = "headwater.deploy.flower.supernode"
        self._process = FlowerProcess("supernode", module, settings, folder.state, self._on_frame, self._on_exit)

    def serve(self, answer: Callable[[Message], Message], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                life, message = self._requests.get(timeout=TICK)
            except queue.Empty:
                continue
            if life != self._life:
                continue
            frame: dict[str, Any] = {}
            reply: Message | None = None
            try:
                reply = answer(message)
                if reply.payload > self._max_bytes:
                    raise Unanswered(f"its answer is {_too_large(self._max_bytes)}")
            except Exception as error:
                self._say(f"could not answer a message: {said(error)}")
                frame, reply = {"reason": public(error)}, None
            if life == self._life:
                self._process.send(frame, reply)

    @property
    def up(self) -> bool:
        child = self._process.process
        return child is not None and child.poll() is None

    def close(self) -> None:
        self._process.close()

    def _on_frame(self, frame: dict[str, Any], message: Message | None) -> None:
        if message is not None:
            self._requests.put((self._life, message))

    def _on_exit(self, reason: str) -> None:
        self._life += 1
        self._say(f"the link at {self._above} cannot be joined at the moment and is tried again: {reason}")


def _too_large(max_bytes: int) -> str:
    return f"larger than the {max_bytes / 1e6:g} MB that are accepted"
