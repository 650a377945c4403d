"""How messages get from a party to those below it and back. A party never speaks to anybody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from headwater.deploy.message import Message, Unanswered


class Link(Protocol):
    """Downwards: from the server to sectors, from a sector's host to its clients."""

    def present(self) -> frozenset[str]:
        """The names of the parties below that are there now."""

    def send(self, to: str, message: Message) -> int:
        """Never waits; gives the number of this exchange."""

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        """Those that have come. Waits at most so long for the first."""

    def forget(self, number: int) -> None:
        """A reply that comes later is not wanted any more."""

    def close(self) -> None: ...


class Uplink(Protocol):
    """Upwards: a sector's host or a client."""

    def serve(self, answer: Callable[[Message], Message], stop: threading.Event) -> None:
        """Answer messages one at a time until `stop` is set."""

    def close(self) -> None: ...
