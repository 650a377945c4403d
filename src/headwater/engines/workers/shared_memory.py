"""Values in shared memory: files that hold one value each, which worker processes map instead of copying.

They are in two directories: one in shared memory (/dev/shm) and, for values that find no room there, one on disk. A
directory is locked as long as the process that created it lives, so that those of killed processes can be removed.
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
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import torch

from headwater.core import serialization
from headwater.errors import ConfigError, OutputError
from headwater.tasks.task import RunContext

PREFIX = "headwater-pool-"
OURS = re.compile(rf"{PREFIX}\d+-\w+(-gone)?")  # directories of this program
FULL = (errno.ENOSPC, errno.EDQUOT)


class SharedFiles:
    """Files of values, shared by processes of this machine.

    Args:
        folders: directories to write to, the preferred one first. The last one is on disk.
    """

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self._locks: list[int] = []

    @staticmethod
    def create(memory: bool = True) -> SharedFiles:
        """Create directories of this process, and remove those of processes that were killed.

        Args:
            memory: whether to use shared memory, if the machine has any; otherwise all files are on disk.
        """
        temporary, shared = Path(tempfile.gettempdir()), Path("/dev/shm")
        files = SharedFiles([])
        for root in [shared, temporary] if memory and shared.is_dir() and os.access(shared, os.W_OK) else [temporary]:
            remove_stale(root)
            folder, lock = _create_locked(root)
            files.folders.append(folder)
            files._locks.append(lock)
        return files

    def write(self, name: str, value: Any, room: int | None = None) -> Path:
        """Write a value to a new file.

        Args:
            name: name of the file.
            value: anything that `headwater.core.serialization` takes.
            room: bytes that may be taken of shared memory; a larger value goes to disk. None for no limit.

        Raises:
            OutputError: all directories are full.
        """
        laid = serialization.Laid.out(value)
        return self._put(name, laid.write, room is None or laid.bytes <= room)

    def copy(self, name: str, source: Path, room: int | None = None) -> Path:
        """Copy a file, with the arguments of `write`."""

        def fill(file: BinaryIO) -> None:
            with source.open("rb") as original:
                shutil.copyfileobj(original, file, 1 << 20)

        return self._put(name, fill, room is None or source.stat().st_size <= room)

    def in_memory(self, path: Path) -> int:
        """Return the bytes of shared memory that a file takes; 0 if it is on disk."""
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
        """Remove a file, complete or not, if it exists."""
        for folder in self.folders:
            (folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove every file. Files that workers are still writing have to be discarded when they reply."""
        for folder in self.folders:
            for path in folder.iterdir():
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the directories. Any process may do so, and several at once."""
        for folder in self.folders:
            gone = folder.with_name(folder.name + "-gone")
            with suppress(OSError):
                folder.rename(gone)  # from here on no process can add a file
            shutil.rmtree(gone, ignore_errors=True)
        for lock in self._locks:
            os.close(lock)
        self._locks = []


def _create_locked(root: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks, where stale directories cannot be found either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # it was not removed as stale before it was locked
                return folder, lock
            os.close(lock)


def remove_stale(root: Path) -> None:
    """Remove the directories of processes that were killed before they could do it themselves."""
    for folder in root.glob(f"{PREFIX}*"):
        if not OURS.fullmatch(folder.name):
            continue
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # another user's, or removed meanwhile
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
        # Strides too: those of an axis of length one are arbitrary, but kernels are selected by them.
        return list(self.tensors).index(id(thing)), thing.stride()


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, key: tuple[int, tuple[int, ...]]) -> torch.Tensor:
        tensor = self.tensors[key[0]]
        return tensor.as_strided(tensor.shape, key[1])


def context_to_tensors(context: RunContext) -> list[torch.Tensor]:
    """Split a run context into tensors: the pickle of everything else, which refers to tensors by number, comes first.

    Raises:
        ConfigError: the model cannot be pickled.
    """
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


def context_from_tensors(parts: list[torch.Tensor]) -> RunContext:
    """Reverse `context_to_tensors`. The context uses the tensors without copying them."""
    pickled, *tensors = parts
    context: RunContext = _Unpacker(io.BytesIO(pickled.numpy().tobytes()), tensors).load()
    return context


def write_context(context: RunContext, files: SharedFiles, name: str) -> Path:
    """Write a run context as one file, which workers map."""
    return files.write(name, context_to_tensors(context))


def read_context(path: Path) -> RunContext:
    """Map the file of `write_context`."""
    return context_from_tensors(serialization.read(path))
