"""How a party is getting on: written by its process to state/status.json, read by `headwater deploy status`.

The process holds a lock for as long as it lives. So there is one at a time for a folder, and whether it is up can be
told even if it was killed and its number has gone to somebody else, or if it runs in a container.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.records import to_json
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder

FILE, LOCK = "status.json", "party.lock"
OFTEN = 0.5  # seconds between two writings
PATIENCE = 2.0  # seconds to get the lock: somebody who only looks holds it for a moment
FIELDS = ("round", "rounds", "phase", "accuracy", "present", "members", "message")


class Status:
    """`update` as often as anything is new: it is written twice a second at most, and the last one always is."""

    def __init__(self, folder: PartyFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._file, self._guard = folder.state / FILE, threading.Lock()
        self._lock: int | None = _locked(folder.state / LOCK, f"{folder.role} {folder.name}")
        now = time.time()
        self._told: dict[str, Any] = {
            "pid": os.getpid(),
            "party": folder.name,
            "role": folder.role,
            "since": now,
            "updated": now,
            "round": 0,
            "rounds": folder.federation.config.rounds,
            "phase": "starting",
            "accuracy": None,
            "present": [],
            "members": list(folder.link.members) if folder.link else [],
            "message": "",
        }
        self._timer: threading.Timer | None = None
        self._written = 0.0
        self._write()

    def update(self, **fields: Any) -> None:
        """Any of round, rounds, phase, accuracy, present, members, message; without any, a sign of life."""
        unknown = set(fields) - set(FIELDS)
        if unknown:
            raise TypeError(f"a status has no field {', '.join(sorted(unknown))}")
        with self._guard:
            if self._lock is None:
                return
            plain = {
                key: sorted(value) if isinstance(value, set | frozenset) else value for key, value in fields.items()
            }
            self._told |= plain | {"updated": time.time()}
            wait = self._written + OFTEN - self._clock()
            if wait <= 0:
                self._write()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._late)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Write what was said last, and let go of the folder."""
        with self._guard:
            if self._lock is None:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._write()
            os.close(self._lock)
            self._lock = None

    def _late(self) -> None:
        with self._guard:
            if self._lock is not None:
                self._write()

    def _write(self) -> None:
        """Whole or not at all. Not made to last: after a power cut it would be out of date anyway."""
        self._timer, self._written = None, self._clock()
        draft = self._file.with_name(f".{FILE}.draft")
        with contextlib.suppress(OSError):  # a full disk is for those to tell who write what matters
            draft.write_text(to_json(self._told), encoding="utf-8")
            draft.replace(self._file)


def read(state: Path) -> dict[str, Any]:
    """What a party said last, and with `up` whether it is there; an empty phase if it was never started."""
    try:
        told = json.loads((state / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = None
    return {"up": up(state, told), **(told if isinstance(told, dict) else {})}


def up(state: Path, told: Any = None) -> bool:
    """Whether the party's process lives: by its lock or, where there is no lock, by its number."""
    lock = state / LOCK
    if lock.exists():
        return _held(lock)
    return isinstance(told, dict) and _alive(told.get("pid"))


def _alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 1:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # there, and another user's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _locked(path: Path, who: str) -> int | None:
    """The open lock file; let go when the process ends, however it does."""
    import fcntl

    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(file)
                raise ConfigError(
                    f"{who} is already running from {path.parent.parent}; end that process first, or watch it with "
                    "`headwater deploy status`"
                ) from None
            time.sleep(0.05)


def _held(path: Path) -> bool:
    import fcntl

    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)  # which lets go of it as well
    return False
