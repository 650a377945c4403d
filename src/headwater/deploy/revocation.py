"""Parties that were revoked: they are not admitted at their link any more, and all others go on without them.

`headwater deploy revoke NAME` at the party that runs the link moves the key of NAME from `keys/members` to
`keys/revoked`, where it stays. A running party notices this; nobody has to be started again. A sector's host reports
it to the server, which no longer waits for that client and remembers it in `state/revoked.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headwater.core.records import parse_json
from headwater.deploy.folder import PartyFolder, find, listed, revoked_key
from headwater.deploy.transport import Downlink, Message, Unanswered, Visitor
from headwater.errors import ConfigError, nearest
from headwater.training.checkpoint import write_whole

OFTEN = 1.0  # seconds between two looks at the folder
FILE = "revoked.json"


def revoke(directory: Path, name: str) -> PartyFolder:
    """Revoke a party for good.

    Args:
        directory: folder of the party that runs its link, or a directory that holds this folder among others.
        name: of the party to revoke.

    Returns:
        The folder of the party that runs the link.

    Raises:
        ConfigError: if no party there runs the link of `name`, or if it was revoked before.
    """
    hosts = [PartyFolder.open(party.path, keys_needed=False) for party in find(directory) if party.role != "client"]
    folder = next((host for host in hosts if name in host.federation.members_of(host.name)), None)
    if folder is None:
        known = [member for host in hosts for member in host.federation.members_of(host.name)]
        whose = f"; below it are {listed(known)}" if known else "; no party in it runs a link"
        raise ConfigError(
            f"{name!r} is not below a party of {directory}{nearest(name, known)}{whose}. Give the folder of its host"
        )
    if name in revoked(folder):
        raise ConfigError(f"{name} was revoked before; its key is {revoked_key(folder.keys, name)}")
    key = revoked_key(folder.keys, name)
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    member = folder.keys / "members" / f"{name}.pub"
    if member.exists():
        member.replace(key)
    else:  # an insecure link has no keys
        key.touch(mode=0o600)
    return folder


def revoked(folder: PartyFolder) -> frozenset[str]:
    """Parties that the agreement has below this one and that it does not admit."""
    agreed = folder.federation.members_of(folder.name)
    return frozenset(name for name in agreed if name not in folder.members or revoked_key(folder.keys, name).exists())


class Revocations:
    """The revoked parties below a running one. It looks at the folder again from time to time.

    Args:
        folder: of the running party.
        link: which is told to admit them no longer.
        log: takes a sentence for each.
    """

    def __init__(self, folder: PartyFolder, link: Downlink, log: Callable[[str], None]) -> None:
        self._folder, self._link, self._log = folder, link, log
        self._names: frozenset[str] = frozenset()
        self._looked = -OFTEN

    def __call__(self) -> frozenset[str]:
        if time.monotonic() - self._looked >= OFTEN:
            self._looked = time.monotonic()
            for name in sorted((now := revoked(self._folder)) - self._names):
                self._link.revoke(name)
                self._log(f"{name} was revoked: it is not admitted any more, and the others go on without it")
            self._names |= now
        return self._names


class RevocationNotices:
    """A `Downlink` that takes note of what hosts report in their replies: which of their clients were revoked, and
    which have come and take no part in the run yet.

    Args:
        folder: of the server.
        link: to the hosts.
        log: takes a sentence for each client.
    """

    def __init__(self, folder: PartyFolder, link: Downlink, log: Callable[[str], None]) -> None:
        self._folder, self._link, self._log, self._path = folder, link, log, folder.state / FILE
        self._to: dict[int, str] = {}  # receiver by number of the exchange
        self.names: set[str] = set()
        self.waiting: dict[str, set[str]] = {}  # by sector, as it last said
        with suppress(OSError, ValueError, TypeError):  # never written, or damaged: the hosts report it again
            self.names = {name for name in parse_json(self._path.read_text(encoding="utf-8")) if isinstance(name, str)}

    def present(self) -> frozenset[str]:
        return self._link.present()

    def send(self, to: str, message: Message, seconds: float | None = None) -> int:
        number = self._link.send(to, message, seconds)
        self._to[number] = to
        return number

    def replies(self, seconds: float) -> list[tuple[int, Message | Unanswered]]:
        replies = self._link.replies(seconds)
        for number, reply in replies:
            sector = self._to.pop(number, "")
            if isinstance(reply, Message):
                self._note(sector, _names(reply.head.get("revoked")))
                self.waiting[sector] = _names(reply.head.get("waiting"))
        return replies

    def forget(self, number: int) -> None:
        self._to.pop(number, None)
        self._link.forget(number)

    def revoke(self, name: str) -> None:
        self._link.revoke(name)

    def visitors(self) -> list[Visitor]:
        return self._link.visitors()

    @property
    def up(self) -> bool:
        return self._link.up

    def close(self) -> None:
        self._link.close()

    def _note(self, sector: str, names: set[str]) -> None:
        new = sorted((names & set(self._folder.federation.members_of(sector))) - self.names)
        if new:
            self.names.update(new)
            write_whole(self._path, json.dumps(sorted(self.names)))
            self._log(f"{sector} has revoked {', '.join(new)}; the run goes on without")


def _names(words: object) -> set[str]:
    return {name for name in words if isinstance(name, str)} if isinstance(words, list) else set()
