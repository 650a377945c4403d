"""What the published image sets share: .npz and pickled files, and download from the Hugging Face hub.

A set that was downloaded is written to the data directory as an .npz file and read from there afterwards.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwater.data.base import FOUR, Data
from headwater.data.files import (
    Array,
    HubLayout,
    Parse,
    T,
    absent,
    broken,
    may_fetch,
    published,
    read_file,
    read_npz,
    reading,
    root,
)
from headwater.errors import DataError, MissingExtra, said

Found = tuple[list[Array], Path]  # x_train, y_train, x_test, y_test and the path they were found at
Batch = tuple[Array, Array]
Read = Callable[[Path], Found | None]
DIGITS = tuple("0123456789")  # class names of several sets
COLOUR_32, GREY_28 = (3, 32, 32), (1, 28, 28)  # channels, height, width


def image_set(
    name: str,
    data_dir: Path | None,
    read: Read,
    classes: Sequence[str],
    keys: Sequence[str] = FOUR,
    folder: str = "",
    shape: tuple[int, ...] = COLOUR_32,
) -> Data:
    """Load an image set: from name.npz, from its authors' files or, if the user agreed, from the Hugging Face hub.

    Args:
        name: of the listed set.
        data_dir: the data directory; None for the default one.
        read: reads the authors' files of a folder; returns None if they are not there.
        classes: class names in the order of the labels.
        keys: names of the four arrays in name.npz.
        folder: the folder in the data directory, if it is not called like the set.
        shape: (channels, height, width) that the images must have.
    """
    parts, path = find(name, data_dir, read, keys, folder)
    return as_data(path, parts, name, classes, shape)


def find(name: str, data_dir: Path | None, read: Read, keys: Sequence[str] = FOUR, folder: str = "") -> Found:
    """The four arrays of an image set and the path they come from. Arguments as for `image_set`."""
    place = root(data_dir) / (folder or name)
    path = place / f"{name}.npz"
    arrays = _arrays(path, keys) or read(place)
    known = published(name)
    if arrays is None and known.layout is not None and may_fetch():
        fetch(name, path)
        arrays = _arrays(path, keys)
    if arrays is None:
        raise absent(name, path, known.source, f"{'all of ' if len(known.get) > 1 else ''}{', '.join(known.get)}")
    return arrays


def _arrays(path: Path, keys: Sequence[str]) -> Found | None:
    if not path.is_file():
        return None
    arrays = read_npz(path)
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise broken(path, f"it lacks {', '.join(missing)}")
    return [arrays[key] for key in keys], path


def as_data(
    path: Path, parts: Sequence[Array], name: str, classes: Sequence[str], shape: tuple[int, ...] = COLOUR_32
) -> Data:
    """Build `Data` from the four arrays. Inconsistent arrays are reported as a damaged file.

    Args:
        path: of the file, for messages.
        parts: x_train, y_train, x_test and y_test.
        name: of the set.
        classes: class names.
        shape: that the images must have.
    """
    try:
        data = Data(*parts, name=name, class_names=classes)
    except DataError as error:
        raise broken(path, error) from error
    if data.shape != shape:
        raise broken(path, f"its images have the shape {data.shape} instead of {shape}")
    return data


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


def _tar(path: Path, inside: str, wanted: Mapping[str, Parse[T]]) -> dict[str, T]:
    parsed: dict[str, T] = {}
    # As a stream, so that no byte is unpacked twice; to its end, since only there is its check-sum.
    with reading(path), gzip.open(path) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./").removeprefix(f"{inside}/")
                content = archive.extractfile(member) if name in wanted and member.isfile() else None
                if content is not None:
                    with reading(path, member.name):
                        parsed[name] = wanted[name](content)
        while stream.read(1 << 20):
            pass
    for name in wanted:
        if name not in parsed:
            raise broken(path, f"it lacks {inside}/{name}")
    return parsed


def joined(batches: list[Batch]) -> Batch:
    """Concatenate batches. Each is freed once it is copied, since the largest sets need most of the memory."""
    y = np.concatenate([batch[1] for batch in batches])
    x = np.empty((len(y), *batches[0][0].shape[1:]), dtype=np.uint8)
    at = 0
    while batches:
        part = batches.pop(0)[0]
        x[at : at + len(part)] = part
        at += len(part)
    return x, y


def channels_first(x: Array) -> Array:
    """Colour images as (n, 3, height, width); the channels may also come last."""
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[3] == 3 else x


def batch_of(content: Any, label: str) -> Batch:
    """Images and labels of a pickled dictionary with rows of 3072 values, written by Python 2 or 3.

    Args:
        content: the dictionary.
        label: the key of the labels.
    """
    named = {key.decode() if isinstance(key, bytes) else str(key): value for key, value in dict(content).items()}
    for key in ("data", label):
        if key not in named:
            raise ValueError(f"it has no {key!r}")
    x, y = np.asarray(named["data"]), np.asarray(named[label])
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072 or not len(x):
        raise ValueError(f"its data are {x.dtype} of shape {x.shape} instead of rows of 3072 bytes")
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise ValueError(f"{len(x)} images but labels of shape {y.shape} and kind {y.dtype}")
    return x.reshape(-1, 3, 32, 32), y


def read_pickle(raw: bytes) -> Any:
    """Unpickle arrays and plain values, without running other code. Strings of Python 2 are returned as bytes."""
    return _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()


class _ArraysOnly(pickle.Unpickler):
    """Refuses everything but arrays and plain values, because other objects could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if name == "_frombuffer" and module in ("numpy.core.numeric", "numpy._core.numeric"):  # protocol 5
            return _from_buffer
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding: text.encode(encoding)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in an image file")


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> Any:
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)


def fetch(name: str, path: Path, source: str | None = None) -> None:
    """Download a set from the Hugging Face hub and write it to an .npz file.

    Args:
        name: of the listed set.
        path: of the file to write.
        source: a copy of its repository, instead of the one at the hub.
    """
    known = published(name)
    layout = known.layout
    assert layout is not None  # `find` fetches only sets that have one
    where = source or known.hub
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingExtra(f"fetching {name} from the Hugging Face hub", "hub") from error
    try:
        train, test = (load_dataset(where, layout.config, split=part) for part in (layout.train, layout.test))
    except Exception as error:  # the network, the hub and the library each have errors of their own
        raise DataError(
            f"{name} could not be fetched from the Hugging Face hub ({where}: {said(error)}); see to the network, or "
            f"get it from {known.source} and put it into {path.parent}"
        ) from error
    arrays: dict[str, Any] = {}
    for name_of_part, rows in (("train", train), ("test", test)):
        arrays |= {f"{key}_{name_of_part}": values for key, values in take(rows, layout, where).items()}
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DataError(
            f"{path} cannot be written ({error.strerror}); name another directory with --data-dir"
        ) from error


def take(rows: Any, layout: HubLayout, where: str) -> dict[str, Array]:
    """Images x, labels y and perhaps y_coarse of one part, which is a `datasets.Dataset`.

    Args:
        rows: the part.
        layout: its columns.
        where: its name at the hub, for messages.
    """
    wanted = [column for column in (layout.image, layout.label, layout.coarse) if column]
    missing = [column for column in wanted if column not in rows.column_names]
    if missing:
        raise DataError(
            f"{where} has no column {missing[0]!r} (it has {', '.join(rows.column_names)}); its format has changed, "
            "so get the official files instead"
        )
    side, shrink = layout.side // layout.shrink, layout.shrink
    x = np.empty((len(rows), side, side, 1 if layout.grey else 3), dtype=np.uint8)
    for number, row in enumerate(rows.select_columns([layout.image])):
        picture = row[layout.image].convert("L" if layout.grey else "RGB")
        if picture.size != (layout.side, layout.side):
            raise DataError(f"{where} has an image of {picture.size} px instead of {layout.side} x {layout.side}")
        x[number] = np.rint(np.asarray(picture).reshape(side, shrink, side, shrink, -1).mean(axis=(1, 3)))
    arrays = {"x": x, "y": _numbers(rows, layout.label, layout.classes, where)}
    if layout.coarse:
        arrays["y_coarse"] = _numbers(rows, layout.coarse, layout.coarse_classes, where)
    return arrays


def _numbers(rows: Any, column: str, classes: Sequence[str], where: str) -> Array:
    """Labels in our order of the classes if the hub uses the same class names, else in its own order."""
    y = np.asarray(rows[column][:], dtype=np.int64)
    if not len(y) or not 0 <= y.min() <= y.max() < len(classes):
        raise DataError(
            f"{where} has labels in {column!r} that are not all from 0 to {len(classes) - 1}; it has changed"
        )
    theirs = list(getattr(rows.features[column], "names", None) or ())
    if sorted(theirs) == sorted(classes):
        y = np.array([classes.index(label) for label in theirs])[y]
    return y
