"""Values in files that are checked when they are read, so that a flipped bit is noticed.

A file that `serialization.store` wrote has the hash of its content as its name. A file of another name is sealed: the
hash follows the value. Files that only live as long as their process (shared memory, spilled values) are not checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from headwater.core import serialization

SEAL = b"SHA-256:"
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size


class Damaged(ValueError):  # noqa: N818
    """The content of a file is not what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is damaged: its content is not what was written")


def read_stored(path: Path) -> Any:
    """Read a value that `serialization.store` wrote.

    Raises:
        Damaged: the content does not have the hash that the file is named by.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != path.name.partition(".")[0]:
        raise Damaged(path)
    return serialization.read(path)


def read_all(files: Mapping[str, str | Mapping[str, str]], directory: Path) -> dict[str, Any]:
    """Read all values of a checkpoint before any is used, so that a damaged one changes nothing.

    Args:
        files: by name, the file of a value or the files of a group; an empty file name stands for a lost value.
        directory: of the files.

    Returns:
        file name → value.
    """
    paths = {path for file in files.values() for path in ([file] if isinstance(file, str) else file.values()) if path}
    return {path: read_stored(directory / path) for path in paths}


class _Hashing:
    """A file that computes the hash of what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self._file.write(data)


def write(value: Any, file: BinaryIO) -> None:
    """Write a value and its seal."""
    hashing = _Hashing(file)
    serialization.write(value, cast(BinaryIO, hashing))
    file.write(SEAL + hashing.hash.digest())


def read(path: Path) -> Any:
    """Read a value that `write` wrote.

    Raises:
        Damaged: the content does not match the seal, or there is none.
    """
    check(path)
    return serialization.read(path)


def check(path: Path) -> None:
    """Compare a file with its seal. Raises Damaged if they do not match."""
    size = path.stat().st_size - SEAL_BYTES
    if size <= 0:
        raise Damaged(path)
    mapped = np.memmap(path, np.uint8, "r")
    if mapped[size:].tobytes() != SEAL + hashlib.sha256(mapped[:size].data).digest():
        raise Damaged(path)
