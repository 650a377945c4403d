"""What a party has during one run: data, models, its values on disk, its checks and its record of what it sends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

from headwater.core import sealed, serialization
from headwater.core.sealed import Damaged
from headwater.deploy.known_members import RunMembers
from headwater.deploy.payload import PayloadReader, Refused
from headwater.deploy.steps import Choice, Trusted
from headwater.deploy.updates import UpdateCheck
from headwater.engines.jobs import LOST, Ref, pick
from headwater.errors import TaskError
from headwater.tasks.task import RunContext

if TYPE_CHECKING:
    from headwater.deploy.permissions import Permissions

SUFFIX = ".value"
RELAY = "relay"  # in place of a tier, for what crosses an edge without a move of the method


class DamagedStore(TaskError):  # noqa: N818
    """A value of the server was damaged on disk. A restarted server reads it from its checkpoint."""


class ValueStore:
    """The named values of one run, one file each, so that a restarted party finds them again.

    Each file ends with a hash of its value, which is compared at every read and when the store is opened. A damaged
    value is removed: it is fetched again where another party has it, and counts as lost elsewhere.

    Args:
        place: directory of all runs of this party.
        run: name of this run. Values of other runs are deleted at the first call of `keep`.
        log: takes a sentence about a damaged value.
        in_checkpoints: whether checkpoints hold these values too. A damaged value then ends the process with
            `DamagedStore`, because a restart from the checkpoint loses nothing.
    """

    def __init__(
        self,
        place: Path,
        run: str,
        log: Callable[[str], None] = lambda line: None,
        in_checkpoints: bool = False,
    ) -> None:
        self._log, self._in_checkpoints = log, in_checkpoints
        self._folder = place / quote(run, safe="")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for draft in self._folder.glob("*.draft"):  # left by a process that was killed while it wrote
            draft.unlink()
        self._held = {unquote(path.name.removesuffix(SUFFIX)) for path in self._folder.glob(f"*{SUFFIX}")}
        self._lost: set[str] = set()  # names of lost values, which have no file
        self._unsynced: set[str] = set()
        for name in sorted(self._held):
            try:
                sealed.check(self._path(name))
            except (Damaged, OSError):
                self.discard(name)
                log(f"the stored value {name} is damaged and is removed; it is fetched again or counts as lost")

    def __contains__(self, name: str) -> bool:
        return name in self._held or name in self._lost

    @property
    def names(self) -> frozenset[str]:
        """Names of the values that are here."""
        return frozenset(self._held)

    def __getitem__(self, name: str) -> Any:
        """The value, or LOST if there is none of this name, or a damaged one."""
        if name not in self._held:
            return LOST
        try:
            return sealed.read(self._path(name))
        except (Damaged, FileNotFoundError):
            self.discard(name)
            sentence = f"the stored value {name} is damaged"
            if self._in_checkpoints:
                raise DamagedStore(f"{sentence}; start the server again: it carries on from its checkpoint") from None
            self._log(f"{sentence}: what needs it counts as lost")
            return LOST

    def __setitem__(self, name: str, value: Any) -> None:
        self.discard(name)
        if value is LOST:
            self._lost.add(name)
            return
        path = self._path(name)
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            sealed.write(value, file)
        os.replace(draft, path)
        self._held.add(name)
        self._unsynced.add(name)

    def link(self, name: str, source: str) -> None:
        """Give the value `source` a second name without copying it."""
        self.discard(name)
        if source not in self._held:
            self._lost.add(name)
            return
        os.link(self._path(source), self._path(name))
        self._held.add(name)
        self._unsynced.add(name)

    def sync(self) -> None:
        """Flush all values to disk; called before a reply says that they are here."""
        new = [self._path(name) for name in self._unsynced & self._held]
        for path in [*new, self._folder] if new else ():  # the folder last, since it has their names
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        self._unsynced.clear()

    def keep(self, names: Iterable[str]) -> None:
        """Delete all values but these."""
        for other in self._folder.parent.iterdir():
            if other != self._folder:
                shutil.rmtree(other, ignore_errors=True)
        wanted = set(names)
        for name in (self._held | self._lost) - wanted:
            self.discard(name)

    def discard(self, name: str) -> None:
        self._lost.discard(name)
        if name in self._held:
            self._held.discard(name)
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}{SUFFIX}"


class SendRecorder(Protocol):
    """Records what this party sends; `headwater.deploy.sent_log.SentLog` writes it to a file."""

    def add(self, round: int, to: str, kind: str, tier: str, direction: str, bytes: int, name: str) -> None: ...


@dataclass(frozen=True)
class PartyRun:
    """One party in one run.

    Args:
        name: of the party.
        context: its data, the models and the seed.
        store: the values it holds.
        reader: checks and reads values of messages.
        sent: records what it sends.
        trusted: whether tasks of a module may be run.
        stamp: head fields of every message: the federation and the run.
        members: who takes part in the run, which every message says, too.
        permissions: what it may be asked to do.
        log: takes one log line.
        log_from_below: takes a log line that a party below reported.
        refused: records a refusal: round, who asked, and why.
        updates: checks the updates that it receives.
    """

    name: str
    context: RunContext
    store: ValueStore
    reader: PayloadReader
    sent: SendRecorder
    trusted: Trusted
    stamp: Mapping[str, Any]
    members: RunMembers
    permissions: Permissions
    log: Callable[[str], None]
    log_from_below: Callable[[str], None] = lambda line: None
    refused: Callable[[int, str, str], None] = lambda round, by, why: None
    updates: UpdateCheck = field(default_factory=UpdateCheck)

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", replace(self.context, party=True))

    def head(self) -> dict[str, Any]:
        """Head fields of every message of this run."""
        return {**self.stamp, **self.members.head()}

    def follow(self, head: Mapping[str, Any]) -> None:
        """Take in clients that have joined the run, as a message of the party above announces it.

        Raises:
            Refused: the announcement is not valid, or the message is of another federation or run.
        """
        for key, expected in self.stamp.items():
            if head.get(key) != expected:
                raise Refused(f"this message is of another {key} than {self.name}'s own")
        if self.members.follow(head):
            self.grow()

    def grow(self) -> None:
        """Work by the membership as it is now."""
        self.permissions.follow(self.members.now)
        self.updates.rows = self.members.now.rows

    def fetch(self, ref: Ref) -> Any:
        return pick(self.store[ref.name], ref)

    def choose(self, choice: Choice) -> Any:
        """The new value or, if it was lost, the old one."""
        new = self.fetch(choice.new)
        self.permissions.chosen(choice, choice.old if new is LOST else choice.new)
        return self.fetch(choice.old) if new is LOST else new

    def record_sent(self, round: int, to: str, name: str, value: Any, tier: str, direction: str) -> None:
        if value is not LOST:
            info = serialization.info(value)
            self.sent.add(round, to, info.kind, tier, direction, info.bytes, name)
