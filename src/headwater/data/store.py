"""Where files are, and what to say when one is absent or broken."""

from __future__ import annotations

import io
import os
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from headwater.data.published import PUBLISHED, Published, differs
from headwater.errors import AbsentData, DataError

Array = np.ndarray[Any, np.dtype[Any]]
FETCH = "HEADWATER_FETCH"  # the user agrees that absent sets are fetched


def root(data_dir: Path | str | None = None) -> Path:
    """The data directory: the one given, else HEADWATER_DATA, else the user's cache."""
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
    """The sentence for a data set whose files are not there; `original` is what its authors call them."""
    known = PUBLISHED.get(what.split(" ")[0], Published(source))  # "sst2 (phrases)" is a part of sst2
    sums = f" ({known.told()})" if known.told() else ""
    offer = f", or set {FETCH}=1 to have it fetched from the Hugging Face hub: {known.hub}" if known.hub else ""
    return AbsentData(
        f"{what} is not in the data directory: {expected.parent} has neither {expected.name} nor {original}; "
        f"get it from {source} and put it there{sums}, or name another directory with --data-dir or "
        f"HEADWATER_DATA{offer}"
    )


def broken(path: Path, why: object) -> DataError:
    """The sentence for a file that is truncated, damaged or not what its name says."""
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
        """All images of the strips whose names begin so, as (n, side, side, 3) bytes."""
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
    """Every array of a .npz file, by name; arrays of Python objects are refused, since reading them could run code."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; give the path of an existing .npz file")
    with Archive(path) as archive:  # np.load would leave a damaged file open
        return {name.removesuffix(".npy"): archive.array(name) for name in archive.names("", ".npy")}
