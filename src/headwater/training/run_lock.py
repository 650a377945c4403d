"""The lock of a run's directory: one process at a time writes to it.

`run.lock` says who holds it: process, host and since when. On one machine the operating system releases the lock when
its holder ends for any reason, so a lock whose holder is gone is taken over. Whether a process of another machine still
runs cannot be checked here; its lock is refused until the user says that it is gone.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from headwater.core.records import parse_json
from headwater.errors import OutputError

LOCK = "run.lock"
LOCKS = Path("/proc/locks")  # what is locked on this machine
BOOT = Path("/proc/sys/kernel/random/boot_id")  # equal in all containers of a machine, whatever their host names


@dataclass(frozen=True)
class LockHolder:
    """Who holds a lock.

    Args:
        pid: of the process.
        host: name of its machine.
        boot: identifies the machine since it was started; empty where that is not known.
        since: time in UTC.
    """

    pid: int
    host: str
    boot: str
    since: str

    @classmethod
    def this_process(cls) -> Self:
        return cls(os.getpid(), socket.gethostname(), _boot(), time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()))

    @classmethod
    def read(cls, file: int) -> Self | None:
        """The holder that the file names; None if it names none."""
        try:
            row = parse_json(os.pread(file, 4096, 0))
            return cls(int(row["pid"]), str(row["host"]), str(row["boot"]), str(row["since"]))
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.host == socket.gethostname() or (self.boot != "" and self.boot == _boot())

    @property
    def is_alive(self) -> bool:
        """Whether a process of this number runs on this machine."""
        try:
            os.kill(self.pid, 0)
        except PermissionError:  # it is alive, and another user's
            return True
        except (OSError, OverflowError):
            return False
        return self.pid > 1

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since} UTC)"


class RunLock:
    """The lock of a run's directory, held inside a `with`. Subclasses lock other directories.

    Args:
        directory: it exists.
        force: take over a lock of another machine, whose process is gone as the user says. A lock that a process of
            this machine holds is never taken.

    Raises:
        OutputError: on entry, if another process holds the lock; the message names it.
    """

    file = LOCK  # in the directory
    otherwise = ", or choose another --out"  # what to do beside waiting for the other process

    def __init__(self, directory: Path, force: bool = False) -> None:
        self._directory, self._path, self._force = directory, directory / self.file, force

    def __enter__(self) -> Self:
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take(file)
                if self._is_at_path(file):
                    os.truncate(file, 0)
                    os.pwrite(file, json.dumps(asdict(LockHolder.this_process())).encode(), 0)
                    self._file = file
                    return self
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # the holder removed the file while it was opened here

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the directory may be gone
            if self._is_at_path(self._file):
                self._path.unlink()
        os.close(self._file)

    def _take(self, file: int) -> None:
        free, holder = _flock(file), LockHolder.read(file)
        if free is False or (free is None and holder is not None and holder.is_here and holder.is_alive):
            raise OutputError(
                f"{self._directory} is being written by {holder or 'another process'}; wait until it ends or end it"
                f"{self.otherwise}"
            )
        if holder is not None and not holder.is_here and not self._force:
            raise OutputError(
                f"{self._directory} is locked by {holder}, and whether that still runs cannot be checked from "
                f"{socket.gethostname()}; if it does not, {self._take_over()}"
            )

    def _take_over(self) -> str:
        """What to do about a lock of another machine, as part of a sentence."""
        resume = f"headwater resume {shlex.quote(str(self._directory))} --force"
        return f"take the lock over with: {resume} (or delete {self._path})"

    def _is_at_path(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False


def holder_of(directory: Path) -> LockHolder | None:
    """Who writes to a run's directory now; None if nobody does, as far as this machine can tell.

    The lock itself is not touched, so that a process that is about to take it is not disturbed.
    """
    try:
        file = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        holder, place = LockHolder.read(file), os.fstat(file)
    finally:
        os.close(file)
    if holder is None or (holder.is_here and not holder.is_alive):
        return None
    try:
        rows = [line.split() for line in LOCKS.read_text(encoding="ascii").splitlines()]
    except OSError:
        return holder
    held = any(row[1] == "FLOCK" and row[-3].rpartition(":")[2] == str(place.st_ino) for row in rows if len(row) > 6)
    return holder if held or not holder.is_here else None  # else another process has this number now


def _flock(file: int) -> bool | None:
    """Lock a file until its descriptor is closed. False if a process has locked it; None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # another system, or a file system without locks
        return None


def _boot() -> str:
    try:
        return BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""
