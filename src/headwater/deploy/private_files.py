"""Files and folders of a party: readable by their owner only where they are private, independent of the umask."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from headwater.errors import ConfigError

OPEN, PRIVATE = 0o644, 0o600  # modes of files
OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


def directory(path: Path) -> None:
    """Create a folder that only its owner can enter; one that is there stays as it is."""
    if not path.is_dir():
        path.mkdir(parents=True)
        path.chmod(0o700)


def write(path: Path, content: bytes, mode: int = OPEN) -> None:
    """Write a file with this mode."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def replace(path: Path, content: bytes, mode: int = OPEN) -> None:
    """Write a file with this mode as a whole or not at all, and to the disk before it takes its name."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        write(draft, content, mode)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:  # on a full disk the draft only takes up room
        draft.unlink(missing_ok=True)
        raise


def check_private(path: Path) -> None:
    """Raise ConfigError if other users can read a private file, or enter a private folder."""
    if os.name != "posix" or not stat.S_IMODE(path.stat().st_mode) & OTHER_USERS:
        return
    mode, what = ("700", "get into") if path.is_dir() else ("600", "read or change")
    raise ConfigError(f"other users can {what} {path}, and it is private; do: chmod {mode} {shlex.quote(str(path))}")
