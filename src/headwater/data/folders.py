"""Folders of the user's own: images by class, client and sector, or one file per client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from PIL.Image import Image, Resampling, fromarray
from PIL.Image import open as open_image

from headwater.data import TABLES
from headwater.data.arrays import natural
from headwater.data.base import Data, held_for_tests, held_out
from headwater.data.files import Array, read_npz, reading
from headwater.data.tables import TableOptions, assemble, sheets_of
from headwater.data.text import Length, Vocabulary, Words
from headwater.errors import ConfigError, DataError

GREY = ("1", "L", "I", "I;16", "I;16B", "I;16L")
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")
LAYOUTS = {1: ("class",), 2: ("client", "class"), 3: ("sector", "client", "class")}
# Top-level folders that are parts of a set rather than classes, clients or sectors. A validation part is used for
# training if there is a test part too, since a run holds out its own validation set.
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "validation"
)
TABLES_ONLY = ("label", "test", "columns", "drop", "text")  # options that folders of images and arrays have not


def folder(
    path: Path,
    *,
    label: str = "label",
    client: str = "",
    sector: str = "",
    test: str = "",
    columns: tuple[str, ...] = (),
    drop: tuple[str, ...] = (),
    text: str = "",
    vocabulary: Vocabulary = "hashed",
    words: Words = 10_000,
    length: Length = 128,
    tokenizer: str = "",
    pixels: Annotated[int, Ge(0)] = 0,
) -> Data:
    """Read a folder of images, tables or .npz files.

    Images lie as class/file, client/class/file or sector/client/class/file, below train/ and test/ if there are both.
    Tables and .npz files lie as client.csv or sector/client.csv. A fifth of each client's samples is for tests, unless
    there is a test part.

    Args:
        path: of the folder.
        label, test, columns, drop, text, vocabulary, words, length, tokenizer: as for a table; for folders of tables.
        client, sector: must be empty, since the paths name them.
        pixels: images are resized to this width and height; 0 keeps their size, or the most common one if they differ.
    """
    if client or sector:
        raise ConfigError(
            f"data.client and data.sector name columns of one table, but in the folder {path} the folders' and files' "
            "names say who holds what; remove them"
        )
    options = TableOptions(label, client, sector, test, columns, drop, text, vocabulary, words, length, tokenizer)
    given = {key: getattr(options, key) for key in TABLES_ONLY}
    changed = [key for key, value in given.items() if value and value != getattr(TableOptions, key)]
    files = files_below(path)
    kinds = {
        "images": [f for f in files if f.suffix.lower() in IMAGES],
        "tables": [f for f in files if f.name.lower().endswith(TABLES)],
        "arrays": [f for f in files if f.suffix.lower() == ".npz"],
    }
    present = [kind for kind, paths in kinds.items() if paths]
    if len(present) != 1:
        content = " and ".join(present) or "no images (.png, .jpg, …), tables (.csv, .parquet) or .npz files"
        raise DataError(f"the folder {path} holds {content}; it needs one kind of them")
    if present != ["tables"] and changed:
        raise ConfigError(f"data.{changed[0]} is for tables, and the folder {path} holds {present[0]}; remove it")
    if present == ["images"]:
        return _images(path, kinds["images"], pixels)
    if present == ["tables"]:
        return assemble(sheets_of(kinds["tables"], _owners(kinds["tables"], path)), str(path), options)
    return _arrays(path, kinds["arrays"], _owners(kinds["arrays"], path))


def files_below(top: Path) -> list[Path]:
    """All files that are not hidden, in natural order (image 2 before image 10)."""
    files = [file for file in top.rglob("*") if file.is_file()]
    shown = [f for f in files if not any(part.startswith((".", "__")) for part in f.relative_to(top).parts)]
    return sorted(shown, key=lambda file: natural(str(file)))


def _owners(files: Sequence[Path], top: Path) -> list[tuple[str, str | None]]:
    """For each file the client, which its name gives, and the sector, which its folder gives."""
    owners: list[tuple[str, str | None]] = []
    for file in files:
        folders = file.relative_to(top).parts[:-1]
        if len(folders) > 1:
            raise DataError(f"{file} lies too deep; files are client.csv or sector/client.csv below {top}")
        sector = folders[0] if folders else None
        if sector is not None and sector.casefold() in PARTS:
            raise DataError(
                f"{file} lies in {sector}/, but folders of tables and .npz files are sectors; put the files of clients "
                f"straight into {top}, and name a table for tests with data.test"
            )
        suffix = next(end for end in (*TABLES, ".npz") if file.name.lower().endswith(end))
        name = file.name[: -len(suffix)]
        owner = f"{sector}/{name}" if sector else name
        if owner in (client for client, _ in owners):
            raise DataError(f"two files below {top} are of the client {owner!r}, one of them {file}; keep one for each")
        owners.append((owner, sector))
    return owners


def _images(top: Path, files: Sequence[Path], size: int) -> Data:
    places = [f.relative_to(top).parts[:-1] for f in files]
    part: list[str] | None = None
    tops = {where[0].casefold() for where in places if where}
    if {"train", "test"} & tops and tops <= set(PARTS):
        part, places = [PARTS[where[0].casefold()] for where in places], [where[1:] for where in places]
        tests = "test" if "test" in part else "validation"
        if tests not in part or "train" not in part:
            raise DataError(
                f"{top} has a folder {sorted(tops)[0]}/ but not both train/ and test/; give both or neither"
            )
    elif {"train", "test"} & tops:
        raise DataError(
            f"{top} has train/ or test/ beside other folders; put all others below them, or all images outside them"
        )
    depths = Counter(len(where) for where in places)
    if len(depths) > 1 or next(iter(depths)) not in LAYOUTS:
        odd = (
            files[next(at for at, where in enumerate(places) if len(where) != depths.most_common(1)[0][0])]
            if len(depths) > 1
            else files[0]
        )
        raise DataError(
            f"{odd} does not lie as images must, all alike: class/file, client/class/file or sector/client/class/file "
            f"below {top}"
        )
    layout = LAYOUTS[next(iter(depths))]
    named = {key: [where[at] for where in places] for at, key in enumerate(layout)}
    classes = sorted(set(named["class"]), key=natural)
    y = np.array([classes.index(name) for name in named["class"]], dtype=np.int64)
    if len(classes) < 2:
        raise DataError(f"{top} has images of one class only, {classes[0]!r}; a classifier needs at least two")
    owner, sector = (np.array(named[key]) if key in named else None for key in ("client", "sector"))
    if owner is not None and sector is not None:  # two sectors may have clients of the same name
        owner = np.array([f"{place}/{name}" for place, name in zip(sector, owner, strict=True)])
    x = _pixels(files, size)
    for_tests = np.array([name == tests for name in part]) if part else held_for_tests(owner, len(x), str(top))
    return held_out(x, y, for_tests, client=owner, sector=sector, name=str(top), class_names=classes)


def _pixels(files: Sequence[Path], size: int) -> Array:
    """All images as bytes of one size; with one channel if all are grey."""
    sizes, coloured = survey(files)
    return image_bytes(files, (size, size) if size else common(sizes), grey=coloured is None)


def survey(files: Sequence[Path]) -> tuple[Counter[tuple[int, int]], Path | None]:
    """The number of images of each (width, height), and the path of the first one in colour."""
    sizes: Counter[tuple[int, int]] = Counter()
    coloured: Path | None = None
    for file in files:
        with reading(file), open_image(file) as picture:
            sizes[picture.size] += 1
            coloured = file if coloured is None and picture.mode not in GREY else coloured
    return sizes, coloured


def common(sizes: Counter[tuple[int, int]]) -> tuple[int, int]:
    """The most common size; the smaller of two that are equally frequent."""
    return max(sizes, key=lambda wh: (sizes[wh], -wh[0] * wh[1]))


def image_bytes(files: Sequence[Path], size: tuple[int, int], *, grey: bool) -> Array:
    """Images as bytes (n, height, width, channels), resized to `size` = (width, height).

    Args:
        files: the images.
        size: (width, height) that others are resized to.
        grey: whether the result has one channel.
    """
    x = np.empty((len(files), size[1], size[0], 1 if grey else 3), dtype=np.uint8)
    for at, file in enumerate(files):
        with reading(file), open_image(file) as picture:
            ready = _bytes(picture).convert("L" if grey else "RGB")
            ready = ready if ready.size == size else ready.resize(size, Resampling.BILINEAR)
            x[at] = np.asarray(ready).reshape(x.shape[1:])
    return x


def _bytes(picture: Image) -> Image:
    """16-bit grey levels scaled to 8 bits; PIL's conversion would clip them."""
    if not picture.mode.startswith("I"):
        return picture
    levels = np.asarray(picture).astype(np.float64) / 257
    return fromarray(np.rint(np.clip(levels, 0, 255)).astype(np.uint8))


def _arrays(top: Path, files: Sequence[Path], owners: Sequence[tuple[str, str | None]]) -> Data:
    """A .npz file with x and y for each client."""
    xs: list[Array] = []
    ys: list[Array] = []
    owner: list[str] = []
    place: list[Any] = []
    for file, (client, sector) in zip(files, owners, strict=True):
        arrays = read_npz(file)
        if "x" not in arrays or "y" not in arrays:
            raise DataError(f"{file} holds {', '.join(arrays) or 'nothing'}; the file of a client needs x and y")
        x, y = arrays["x"], arrays["y"]
        first = (xs[0], ys[0]) if xs else (x, y)
        alike = all(one.shape[1:] == other.shape[1:] for one, other in zip((x, y), first, strict=True))
        if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or not alike:
            raise DataError(f"{file} has x of shape {x.shape} and y of shape {y.shape}; all must be alike")
        if xs and (x.dtype.kind, y.dtype.kind) != (xs[0].dtype.kind, ys[0].dtype.kind):
            raise DataError(
                f"{file} has x of type {x.dtype} and y of type {y.dtype}, and {files[0]} has {xs[0].dtype} and "
                f"{ys[0].dtype}; save them with the same types"
            )
        xs.append(x)
        ys.append(y)
        owner += [client] * len(y)
        place += [sector] * len(y)
    x, y, who = np.concatenate(xs), np.concatenate(ys), np.array(owner)
    sectors = None if place[0] is None else np.array(place)
    return held_out(x, y, held_for_tests(who, len(x), str(top)), client=who, sector=sectors, name=str(top))
