"""The contract of a data set, for listed sets and for a user's own function.

A test file for a set of one's own calls `check_data(load("mine:function"))`. One for a new listed set has a small copy
of its files in the authors' format and calls `check_listed(name, miniature, tmp_path)`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwater.data.base import Data, Examples
from headwater.data.loading import load
from headwater.errors import DataError
from miniatures import Miniature


def check_samples(found: Data, part: Examples, kind: str) -> None:
    """One int64 label in range per sample, and inputs of the set's shape.

    Args:
        found: the set.
        part: its training or test part.
        kind: "image", "tokens" or "flows".
    """
    assert part.y.dtype == torch.int64
    assert tuple(part.x.shape) == (len(part.y), *found.shape)
    assert 0 <= int(part.y.min()) <= int(part.y.max()) < found.classes
    assert found.tokens == (kind == "tokens")
    if kind == "tokens":
        assert part.x.dtype == torch.int64
        assert int(part.x.min()) >= 0
    else:
        assert part.x.dtype.is_floating_point
    if kind == "image":
        assert part.x.dtype == torch.float32
        assert -1.0 <= float(part.x.min()) < float(part.x.max()) <= 1.0


def check_data(found: Data, kind: str = "") -> None:
    """Both parts are valid, and class names differ. `kind` is guessed from the set if it is empty."""
    kind = kind or ("tokens" if found.tokens else "flows")
    assert len(set(found.class_names)) == len(found.class_names) == found.classes
    check_samples(found, found.train, kind)
    check_samples(found, found.test, kind)


def same(one: Data, other: Data) -> bool:
    pairs = ((one.train, other.train), (one.test, other.test))
    alike = all(_equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in pairs)
    return alike and one.class_names == other.class_names


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def write_miniature(name: str, miniature: Miniature, where: Path) -> list[Path]:
    """Write the small copy of a set below a data directory; return its files."""
    folder = where / (miniature.folder or name)
    folder.mkdir(parents=True)
    miniature.write(folder)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check_miniature(name: str, miniature: Miniature, where: Path) -> None:
    """The small copy is read with the sizes that it has, twice the same, and no file is written."""
    files = {path: path.read_bytes() for path in write_miniature(name, miniature, where)}
    found = load(name, where)
    sizes = len(found), len(found.test), found.shape, found.classes
    assert sizes == (miniature.train, miniature.test, miniature.shape, miniature.classes)
    assert found.name == name
    check_data(found, miniature.kind)
    assert same(found, load(name, where))
    assert {path: path.read_bytes() for path in where.rglob("*") if path.is_file()} == files


def check_damage(name: str, files: list[Path], where: Path, content: bytes, words: str = "") -> None:
    """Each file with this content instead of its own is named in a DataError."""
    for path in files:
        right = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            load(name, where)
        assert path.name in str(caught.value)
        assert words in str(caught.value)
        path.write_bytes(right)


def check_missing(name: str, miniature: Miniature, where: Path) -> None:
    """Without files, the message says what to get, from where, and where to put it."""
    with pytest.raises(DataError) as caught:
        load(name, where)
    said = str(caught.value)
    assert said.startswith(name)
    for words in (
        "is not in the data directory",
        str(where / (miniature.folder or name)),
        "get it from http",
        "--data-dir or HEADWATER_DATA",
    ):
        assert words in said


def check_listed(name: str, miniature: Miniature, where: Path) -> None:
    """The contract of a listed set that is read from the data directory."""
    check_missing(name, miniature, where)
    check_miniature(name, miniature, where)
    files = sorted(path for path in where.rglob("*") if path.is_file())
    check_damage(name, files, where, b"<html>\n<body>404 not found</body>\n</html>\n", "damaged or incomplete")
    check_damage(name, files, where, b"")
