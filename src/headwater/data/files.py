"""Files of data sets: the data directory, what authors publish, archives, and errors for missing or damaged files.

The authors' checksums tell which files are damaged.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from headwater.data import DATASETS
from headwater.data.mistakes import mistake_in
from headwater.errors import AbsentData, DataError, HeadwaterError, said

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


@dataclass(frozen=True)
class PublishedFile:
    """A published file.

    Args:
        digest: its MD5 (32 digits) or SHA-256 (64 digits).
        size: its length in bytes; 0 if it is not known.
    """

    digest: str
    size: int = 0

    @property
    def kind(self) -> str:
        return "MD5" if len(self.digest) == 32 else "SHA-256"


@dataclass(frozen=True)
class HubLayout:
    """The form that an image set has at the Hugging Face hub.

    Args:
        classes: class names in our order.
        side: width and height of the images in px.
        image: the column of images.
        label: the column of labels.
        coarse: a second column of labels, if there is one.
        coarse_classes: the class names of that column.
        config: the configuration's name at the hub.
        train: the name of the training part.
        test: the name of the test part.
        grey: whether images have one channel.
        shrink: images are averaged over squares of this many px.
    """

    classes: Sequence[str]
    side: int
    image: str = "image"
    label: str = "label"
    coarse: str = ""
    coarse_classes: Sequence[str] = ()
    config: str | None = None
    train: str = "train"
    test: str = "test"
    grey: bool = False
    shrink: int = 1


@dataclass(frozen=True)
class Published:
    """Where a set is published, and the checksums of its files. The module of a set lists it in `PUBLISHED` by name.

    Args:
        source: address of the set.
        get: the files to download; other forms of them may be read as well.
        files: checksums by file name, also of other forms.
        hub: the set's name at the Hugging Face hub, if its content there is the same.
        layout: its form there.
    """

    source: str
    get: tuple[str, ...] = ()
    files: Mapping[str, PublishedFile] = field(default_factory=dict)
    hub: str = ""
    layout: HubLayout | None = None

    def digests(self) -> str:
        """The checksums of the files to download, as a phrase; empty if none is known."""
        return ", ".join(f"{name} has {self.files[name].kind} {self.files[name].digest}" for name in self.get)


def published(name: str) -> Published:
    """What is published of a listed data set: `PUBLISHED[name]` of the module that defines it, else nothing."""
    if name not in DATASETS:
        return Published("")
    module = importlib.import_module(DATASETS[name].target.partition(":")[0])
    known: Mapping[str, Published] = getattr(module, "PUBLISHED", {})
    return known.get(name, Published(""))


def _official(path: Path) -> PublishedFile | None:
    """The published file of this name, of the set that the nearest enclosing folder is named after."""
    owner = next((folder.name for folder in path.parents if folder.name in DATASETS), "")
    return published(owner).files.get(path.name)


def differs(path: Path) -> str:
    """A phrase with both checksums if a file differs from the published one of its name; else an empty string."""
    file = _official(path)
    if file is None or not path.is_file():
        return ""
    try:
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, file.kind.replace("-", "").lower()).hexdigest()
    except OSError:
        return ""
    return "" if digest == file.digest else f"its {file.kind} is {digest}, that of the published file {file.digest}"


def altered(path: Path) -> bool:
    """Whether a file is the published one with wrong bytes: it has the same length and another checksum.

    A file of another length may be one that the user made, such as a part of the set, and is judged by its content.
    """
    file = _official(path)
    return file is not None and bool(file.size) and path.stat().st_size == file.size and bool(differs(path))


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


@contextmanager
def reading(path: Path, member: str = "") -> Iterator[None]:
    """Context in which any error of another library is reported as damage to a file.

    Args:
        path: of the file.
        member: what is read of it, if it is an archive.
    """
    try:
        yield
    except HeadwaterError:
        raise
    except Exception as error:  # unpickling damaged bytes can raise anything at all
        if mistake := mistake_in(error, f"{path}: {member.removesuffix('.npy')}" if member else str(path)):
            raise DataError(mistake) from error
        why = "it is not all in UTF-8; save it in UTF-8" if isinstance(error, UnicodeDecodeError) else said(error)
        raise broken(path, f"{member}: {why}" if member else why) from error


class Archive:
    """A zip file whose members are checked as they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            self._zip = zipfile.ZipFile(path)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def names(self, start: str, end: str) -> list[str]:
        """The members whose names start and end so, sorted."""
        return sorted(n for n in self._zip.namelist() if n.startswith(start) and n.endswith(end))

    def read(self, name: str) -> bytes:
        with reading(self.path):
            return self._zip.read(name)

    def array(self, name: str) -> Array:
        with reading(self.path, name):
            content: Array = np.load(io.BytesIO(self.read(name)), allow_pickle=False)
            return content

    def text(self, name: str) -> str:
        with reading(self.path, name):
            return self.read(name).decode("utf-8")

    def strips(self, start: str, side: int) -> Array:
        """All images of the .webp strips whose names start with `start`, as (n, side, side, 3) bytes.

        Args:
            start: of the members' names.
            side: width and height of an image in px.
        """
        from PIL import Image

        parts = []
        for name in self.names(start, ".webp"):
            with reading(self.path, name), Image.open(io.BytesIO(self.read(name))) as picture:
                parts.append(np.asarray(picture.convert("RGB")).reshape(-1, side, side, 3))
        if not parts:
            raise broken(self.path, f"it holds no {start}*.webp")
        return np.concatenate(parts)


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of a .npz file by name. Arrays of Python objects are refused, since reading them could run code."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; give the path of an existing .npz file")
    with Archive(path) as archive:  # np.load would leave a damaged file open
        return {name.removesuffix(".npy"): archive.array(name) for name in archive.names("", ".npy")}


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
    with reading(path):
        if altered(path):  # nothing else in such a file would tell
            raise ValueError("its length is that of the published file, but its bytes are not")
        with path.open("rb") as content:
            return parse(content)
