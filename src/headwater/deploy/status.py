"""What a running party tells its operator in state/status.json, which `headwater deploy status` reads.

The process holds a file lock while it runs. So only one process runs from a folder at a time, and `deploy status` sees
that it is up even in a container, or that it was killed even if its process id is in use again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.records import parse_json, to_json
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.deploy.folder import FoundParty, PartyFolder

FILE, LOCK = "status.json", "party.lock"
OFTEN = 0.5  # shortest time in seconds between two writes
PATIENCE = 2.0  # seconds to wait for the lock, which `deploy status` holds for a moment
FIELDS = ("round", "rounds", "phase", "accuracy", "present", "members", "message", "late")
LIVE = ("below", "above", "awaited", "visitors", "other_visitors", "sent", "refusals", "faults")  # from `Status.live`


class Status:
    """The status of a party. It is written at most twice a second; the last update is always written.

    Args:
        folder: whose lock is taken until `close`.
        clock: in seconds; replaced by tests.

    Raises:
        ConfigError: if another process runs from this folder.
    """

    def __init__(self, folder: PartyFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._file, self._guard = folder.state / FILE, threading.Lock()
        self._lock: int | None = _lock(folder.state / LOCK, f"{folder.role} {folder.name}")
        now = time.time()
        self._fields: dict[str, Any] = {
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
            "late": {},  # by client that came after the run had begun: its first round, or that it was refused
        }
        self.live: Callable[[], dict[str, Any]] = dict  # gives LIVE fields whenever the file is written
        self._timer: threading.Timer | None = None
        self._written = 0.0
        self._write()

    def update(self, **fields: Any) -> None:
        """Change any of FIELDS; without arguments, only the time of the last update."""
        unknown = set(fields) - set(FIELDS)
        if unknown:
            raise TypeError(f"a status has no field {', '.join(sorted(unknown))}")
        with self._guard:
            if self._lock is None:
                return
            plain = {
                key: sorted(value) if isinstance(value, set | frozenset) else value for key, value in fields.items()
            }
            self._fields |= plain | {"updated": time.time()}
            wait = self._written + OFTEN - self._clock()
            if wait <= 0:
                self._write()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._write_later)
                self._timer.daemon = True
                self._timer.start()

    @property
    def fields(self) -> dict[str, Any]:
        """All fields, as they are written."""
        return self._fields | self.live()

    def close(self) -> None:
        """Write the last update and release the lock."""
        with self._guard:
            if self._lock is None:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._write()
            os.close(self._lock)
            self._lock = None

    def _write_later(self) -> None:
        with self._guard:
            if self._lock is not None:
                self._write()

    def _write(self) -> None:
        """Replace the file as a whole. It is not flushed to disk, since it is out of date after a power cut."""
        self._timer, self._written = None, self._clock()
        draft = self._file.with_name(f".{FILE}.draft")
        with contextlib.suppress(OSError):  # a full disk is reported where results are written
            draft.write_text(to_json(self.fields), encoding="utf-8")
            draft.replace(self._file)


def read(state: Path) -> dict[str, Any]:
    """The last status of a party, with `up` for whether its process runs; only `up` if it was never started."""
    try:
        fields = parse_json((state / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        fields = None
    fields = fields if isinstance(fields, dict) else {}
    lock = state / LOCK
    up = _is_locked(lock) if lock.exists() else _is_alive(fields.get("pid"))  # without a lock, by process id
    return {"up": up, **fields, **_typed(fields)}


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    """Lists of names and tables by party, without what does not belong there: a damaged file is shown all the same."""
    names = {
        key: [name for name in fields[key] if isinstance(name, str)] if isinstance(fields[key], list) else []
        for key in ("present", "members")
        if key in fields
    }
    late = {"late": fields["late"] if isinstance(fields["late"], dict) else {}} if "late" in fields else {}
    if "below" not in fields:
        return names | late
    below = fields["below"].items() if isinstance(fields["below"], dict) else ()
    return names | late | {"below": {name: member for name, member in below if isinstance(member, dict)}}


def rows(parties: Iterable[FoundParty]) -> Iterator[dict[str, Any]]:
    """The status of each party as `headwater deploy status --json` prints it."""
    for party in parties:
        fields = read(party.state)
        row: dict[str, Any] = {"party": party.name, "role": party.role, "up": fields["up"], "pid": fields.get("pid")}
        row |= {key: fields.get(key) for key in (*FIELDS, *LIVE, "since", "updated")}
        updated = fields.get("updated")
        row["seconds"] = max(0.0, time.time() - updated) if isinstance(updated, int | float) else None
        yield row


def _is_alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 1:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # it is alive, and another user's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _lock(path: Path, who: str) -> int | None:
    """Lock the file, which is unlocked when the process ends for any reason. Returns its descriptor."""
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


def _is_locked(path: Path) -> bool:
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
        os.close(file)  # also unlocks it
    return False
