"""Where the processes of a pool meet: directories of files that hold one value each and are mapped by whoever needs it.

The first directory lies in shared memory; what finds no room there goes to the second, on disk. A directory is locked
as long as the process that made it lives, so that what a killed run left behind can be told from what is in use.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import torch

from headwater.core import serialization
from headwater.core.serialization import Info
from headwater.engines.base import Done
from headwater.errors import ConfigError, OutputError
from headwater.tasks.task import RunContext

PREFIX = "headwater-pool-"
OURS = re.compile(rf"{PREFIX}\d+-\w+(-gone)?")  # nobody else names a directory so
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Failure:
    """What went wrong in a worker."""

    error: bytes  # type and arguments of an exception that is raised as it is; empty for any other
    summary: str
    trace: str


@dataclass(frozen=True)
class Result:
    """What one job made: where the value is (nowhere if it was lost)."""

    info: Info | None = None
    file: Path | None = None
    memory: int = 0  # bytes of shared memory that the file takes


@dataclass(frozen=True)
class Reply:
    """What a worker says: the results of the jobs that it was given, or what went wrong; nothing when it is ready."""

    results: tuple[Result, ...] = ()
    done: Done | None = None
    failure: Failure | None = None


class Space:
    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self._locks: list[int] = []

    @staticmethod
    def create(memory: bool = True) -> Space:
        """New directories of this process; those of processes that are gone are swept away."""
        temporary, shared = Path(tempfile.gettempdir()), Path("/dev/shm")
        space = Space([])
        for root in [shared, temporary] if memory and shared.is_dir() and os.access(shared, os.W_OK) else [temporary]:
            sweep(root)
            folder, lock = _claim(root)
            space.folders.append(folder)
            space._locks.append(lock)
        return space

    def write(self, name: str, value: Any, room: int | None = None) -> Path:
        """A new file; on disk if it takes more than there is room for in memory."""
        laid = serialization.Laid.out(value)
        return self._put(name, laid.write, room is None or laid.bytes <= room)

    def copy(self, name: str, source: Path, room: int | None = None) -> Path:
        def fill(file: BinaryIO) -> None:
            with source.open("rb") as given:
                shutil.copyfileobj(given, file, 1 << 20)

        return self._put(name, fill, room is None or source.stat().st_size <= room)

    def in_memory(self, path: Path) -> int:
        """How much memory a file takes."""
        return path.stat().st_size if len(self.folders) > 1 and path.parent == self.folders[0] else 0

    def _put(self, name: str, fill: Callable[[BinaryIO], None], memory: bool) -> Path:
        for folder in self.folders if memory else self.folders[-1:]:
            path = folder / name
            try:
                with path.open("wb") as file:
                    fill(file)
                return path
            except BaseException as error:
                with suppress(OSError):
                    path.unlink()
                if not (isinstance(error, OSError) and error.errno in FULL):
                    raise
        roots = " and ".join(str(folder.parent) for folder in self.folders)
        raise OutputError(f"there is no room left for values in {roots}; make room, or set TMPDIR to a larger disk")

    def discard(self, name: str) -> None:
        """Remove what a worker that died may have left of a value."""
        for folder in self.folders:
            (folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove every file; what a worker may still write is discarded when it says so."""
        for folder in self.folders:
            for path in folder.iterdir():
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove everything; any process may, and several at once."""
        for folder in self.folders:
            gone = folder.with_name(folder.name + "-gone")
            with suppress(OSError):
                folder.rename(gone)  # from here on nobody can add a file
            shutil.rmtree(gone, ignore_errors=True)
        for lock in self._locks:
            os.close(lock)
        self._locks = []


def _claim(root: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: then nobody can sweep there either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # it was not swept away just before it was locked
                return folder, lock
            os.close(lock)


def sweep(root: Path) -> None:
    """Remove the directories of processes that were killed before they could."""
    for folder in root.glob(f"{PREFIX}*"):
        if not OURS.fullmatch(folder.name):
            continue
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # somebody else's, or gone meanwhile
            continue
        with suppress(OSError):  # locked: its process lives
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, torch.Tensor] = {}

    def persistent_id(self, thing: Any) -> tuple[int, tuple[int, ...]] | None:
        if type(thing) is not torch.Tensor or thing.requires_grad or not thing.is_contiguous():
            return None
        self.tensors[id(thing)] = thing
        # Strides too: those of an axis of length one are arbitrary, but kernels are chosen by them.
        return list(self.tensors).index(id(thing)), thing.stride()


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, key: tuple[int, tuple[int, ...]]) -> torch.Tensor:
        tensor = self.tensors[key[0]]
        return tensor.as_strided(tensor.shape, key[1])


def parts_of(context: RunContext) -> list[torch.Tensor]:
    """A context as tensors: all that is none as a pickle that only names the others, then these."""
    text = io.BytesIO()
    packer = _Packer(text)
    try:
        packer.dump(context)
    except Exception as error:
        raise ConfigError(
            f"the model cannot be sent to worker processes ({error}); give a function that makes all it needs itself, "
            "or set engine.name = 'inline'"
        ) from error
    pickled = torch.frombuffer(bytearray(text.getvalue()), dtype=torch.uint8)
    return [pickled, *packer.tensors.values()]


def joined(parts: list[torch.Tensor]) -> RunContext:
    """A context from its tensors."""
    pickled, *tensors = parts
    context: RunContext = _Unpacker(io.BytesIO(pickled.numpy().tobytes()), tensors).load()
    return context


def pack(context: RunContext, space: Space, name: str) -> Path:
    """A context as one file, whose tensors can be mapped."""
    return space.write(name, parts_of(context))


def unpack(path: Path) -> RunContext:
    return joined(serialization.read(path))
