"""Waiting: for an address, for a call that does not succeed yet, and saying so in the log, but not too often."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable

from headwater.deploy.transport import Address
from headwater.errors import ConfigError

AGAIN = 60.0  # seconds between two log lines about one thing that a party waits for
TICK = 0.2  # seconds between two checks of what is waited for


class Patience:
    """Says what a party waits for: at once, when the reason changes, and again after `AGAIN` seconds.

    Args:
        say: takes a sentence.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last, self._at = say, "", 0.0

    def __call__(self, sentence: str) -> None:
        if sentence != self._last or time.monotonic() - self._at > AGAIN:
            self._last, self._at = sentence, time.monotonic()
            self._say(sentence)


def await_free(address: Address, say: Callable[[str], None]) -> None:
    """Wait until an address can be bound to, rather than start a SuperLink over and over.

    Raises:
        ConfigError: if this user may not use the port at all.
    """
    while (error := bind_error(address)) is not None:
        if error.errno == errno.EACCES:
            raise ConfigError(
                f"the link cannot be opened at {address} ({error.strerror}); change [link] address in party.toml: "
                "ports below 1024 are for the administrator"
            )
        say(
            f"the link cannot be opened at {address} yet ({error.strerror}); it is tried again until that works: end "
            "what uses it, or change [link] address in party.toml"
        )
        time.sleep(TICK)


def bind_error(address: Address) -> OSError | None:
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, where = found[0]
        with socket.socket(family, kind, proto) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:  # also of a name that cannot be resolved yet
        return error
    return None


def wait_for(call: Callable[[], object], seconds: float, error: type[Exception]) -> None:
    """Repeat a call until it raises no `error`; after so many seconds, raise it."""
    end = time.monotonic() + seconds
    while True:
        try:
            call()
            return
        except error:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
