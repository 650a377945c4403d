"""Files of data sets: the data directory, archives, and errors for missing or damaged files."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from headwater.data.published import altered, differs, published
from headwater.errors import AbsentData, DataError, said

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]
Parse = Callable[[IO[bytes]], T]  # may raise any exception if the content is not as it should be
FETCH = "HEADWATER_FETCH"  # environment variable by which the user allows downloads


def may_fetch() -> bool:
    """Whether the user allows downloads, by the environment variable HEADWATER_FETCH."""
    return os.environ.get(FETCH, "").strip().lower() not in ("", "0", "no", "false", "off")


def root(data_dir: Path | str | None = None) -> Path:
    """The data directory: `data_dir` if given, else the variable HEADWATER_DATA, else the user's cache directory."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if os.environ.get("HEADWATER_DATA"):
        return Path(os.environ["HEADWATER_DATA"]).expanduser()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headwater"


def absent(what: str, expected: Path, source: str, original: str) -> AbsentData:
    """The error for a data set whose files are not there.

    Args:
        what: the set, or a part of it such as "sst2 (phrases)".
        expected: the first path that was looked for.
        source: where to get the set.
        original: the names of its authors' files.
    """
    known = published(what.split(" ")[0])
    sums = f" ({known.digests()})" if known.digests() else ""
    offer = f", or set {FETCH}=1 to have it fetched from the Hugging Face hub: {known.hub}" if known.hub else ""
    return AbsentData(
        f"{what} is not in the data directory: {expected.parent} has neither {expected.name} nor {original}; "
        f"get it from {source} and put it there{sums}, or name another directory with --data-dir or "
        f"HEADWATER_DATA{offer}"
    )


def broken(path: Path, why: object) -> DataError:
    """The error for a file that is truncated, damaged or not of the format that its name says.

    Args:
        path: of the file.
        why: the reason, or the error that reading it raised.
    """
    other = differs(path)
    return DataError(f"{path} is damaged or incomplete ({why}); {f'{other}; ' if other else ''}fetch or copy it again")


class Archive:
    """A zip file whose members are checked as they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise broken(path, error) from error

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def names(self, start: str, end: str) -> list[str]:
        """The members whose names start and end so, sorted."""
        return sorted(n for n in self._zip.namelist() if n.startswith(start) and n.endswith(end))

    def read(self, name: str) -> bytes:
        try:
            return self._zip.read(name)
        except (
            KeyError,
            zipfile.BadZipFile,
            zlib.error,
            OSError,
            EOFError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise broken(self.path, error) from error

    def array(self, name: str) -> Array:
        try:
            found: Array = np.load(io.BytesIO(self.read(name)), allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise broken(self.path, f"{name}: {error}") from error
        return found

    def text(self, name: str) -> str:
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise broken(self.path, f"{name}: {error}") from error

    def strips(self, start: str, side: int) -> Array:
        """All images of the .webp strips whose names start with `start`, as (n, side, side, 3) bytes.

        Args:
            start: of the members' names.
            side: width and height of an image in px.
        """
        from PIL import Image, UnidentifiedImageError

        parts = []
        for name in self.names(start, ".webp"):
            try:
                with Image.open(io.BytesIO(self.read(name))) as picture:
                    pixels = np.asarray(picture.convert("RGB"))
                parts.append(pixels.reshape(-1, side, side, 3))
            except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
                raise broken(self.path, f"{name}: {error}") from error
        if not parts:
            raise broken(self.path, f"it holds no {start}*.webp")
        return np.concatenate(parts)


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of a .npz file by name. Arrays of Python objects are refused, since reading them could run code."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; give the path of an existing .npz file")
    with Archive(path) as archive:  # np.load would leave a damaged file open
        return {name.removesuffix(".npy"): archive.array(name) for name in archive.names("", ".npy")}


def read_members(
    folder: Path, inside: str, archive: str, wanted: Mapping[str, Parse[T]]
) -> tuple[dict[str, T], Path] | None:
    """Read files that belong together, from a folder or from the .tar.gz archive in which they are published.

    Args:
        folder: of the data set.
        inside: the folder in it, and in the archive, that holds the files.
        archive: the archive's name in `folder`.
        wanted: a parser for each file name.

    Returns:
        The parsed files by name and the path they were found at; None if neither folder nor archive is there.

    Raises:
        DataError: one of the files is missing or damaged.
    """
    if (folder / inside).is_dir():
        return {name: read_file(folder / inside / name, parse) for name, parse in wanted.items()}, folder / inside
    if (folder / archive).is_file():
        return _tar(folder / archive, inside, wanted), folder / archive
    return None


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The path of the first of these files that exists; None if none does."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_file(path: Path, parse: Parse[T]) -> T:
    """Parse a file. Any error of the parser is reported as damage to the file.

    Args:
        path: of the file.
        parse: is called with the open file.
    """
    if not path.is_file():
        raise broken(path.parent, f"it lacks {path.name}")
    try:
        if altered(path):  # nothing else in such a file would tell
            raise ValueError("its length is that of the published file, but its bytes are not")
        with path.open("rb") as content:
            return parse(content)
    except DataError:
        raise
    except Exception as error:  # unpickling damaged bytes can raise anything at all
        raise broken(path, said(error)) from error


def _tar(path: Path, inside: str, wanted: Mapping[str, Parse[T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    try:
        # As a stream, so that no byte is unpacked twice; to its end, since only there is its check-sum.
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = member.name.removeprefix("./").removeprefix(f"{inside}/")
                    content = archive.extractfile(member) if name in wanted and member.isfile() else None
                    if content is not None:
                        found[name] = _parsed(path, member.name, wanted[name], content)
            while stream.read(1 << 20):
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise broken(path, said(error)) from error
    for name in wanted:
        if name not in found:
            raise broken(path, f"it lacks {inside}/{name}")
    return found


def _parsed(path: Path, member: str, parse: Parse[T], content: IO[bytes]) -> T:
    try:
        return parse(content)
    except Exception as error:
        raise broken(path, f"{member}: {said(error)}") from error
