"""Files that belong together, in a folder or in the .tar.gz archive in which they come."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, TypeVar

from headwater.data.published import altered
from headwater.data.store import broken
from headwater.errors import DataError, said

T = TypeVar("T")
Parse = Callable[[IO[bytes]], T]  # raises whatever it likes if the content is not what it should be


def read_members(
    folder: Path, inside: str, archive: str, wanted: Mapping[str, Parse[T]]
) -> tuple[dict[str, T], Path] | None:
    """Name → what its parser makes of it, and where it was found: folder/inside, else folder/archive; none if neither
    is there. All of the members are read, or none is given out."""
    if (folder / inside).is_dir():
        return {name: read_file(folder / inside / name, parse) for name, parse in wanted.items()}, folder / inside
    if (folder / archive).is_file():
        return _tar(folder / archive, inside, wanted), folder / archive
    return None


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of these files that is there."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_file(path: Path, parse: Parse[T]) -> T:
    """What a parser makes of a file; whatever it raises is damage to that file."""
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
