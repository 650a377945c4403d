"""Upwards over Flower: the party joins the SuperLink of who is above it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from headwater.deploy.flower.folder import PartyFolder, host_port, need
from headwater.deploy.flower.kept import Kept
from headwater.deploy.flower.link import MAX_BYTES
from headwater.deploy.message import Message, Unanswered
from headwater.errors import ConfigError, said

TICK = 0.2  # seconds after which `stop` is looked at


class FlowerUplink:
    """Implements `Uplink`. It goes on trying while nobody above answers."""

    def __init__(self, folder: PartyFolder, max_bytes: int = MAX_BYTES) -> None:
        need()
        if folder.above is None:
            raise ConfigError(f"{folder.path} has no [above]: this party has nobody above it")
        host_port(folder.above)
        words = ["--superlink", folder.above, "--node-config", f'name="{folder.name}"']
        if folder.insecure:
            words.append("--insecure")
        else:
            keys = folder.keys.resolve()
            words += ["--root-certificates", str(keys / "ca.crt")]
            words += ["--auth-supernode-private-key", str(keys / "node.key")]
        self._max_bytes = max_bytes
        self._asked: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._life = 0  # an answer is only for the process that asked
        facts = {"words": words, "name": folder.name, "max_bytes": max_bytes}
        self._kept = Kept("supernode", "headwater.deploy.flower.up", facts, folder.state, self._hear, self._lost)

    def serve(self, answer: Callable[[Message], Message], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                life, message = self._asked.get(timeout=TICK)
            except queue.Empty:
                continue
            if life != self._life:
                continue  # who asked is gone
            try:
                reply = answer(message)
                if reply.payload > self._max_bytes:
                    raise Unanswered(f"its answer is larger than the {self._max_bytes / 1e6:g} MB that are accepted")
            except Exception as error:
                self._tell(life, {"reason": said(error)}, None)
            else:
                self._tell(life, {}, reply)

    def close(self) -> None:
        self._kept.close()

    def _tell(self, life: int, frame: dict[str, Any], message: Message | None) -> None:
        if life == self._life:
            self._kept.tell(frame, message)

    # In the thread that keeps the process

    def _hear(self, frame: dict[str, Any], message: Message | None) -> None:
        if message is not None:
            self._asked.put((self._life, message))

    def _lost(self, reason: str) -> None:
        self._life += 1
