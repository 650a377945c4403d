"""Image sets in the form in which their authors publish them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from headwater.data.members import Parse, first_file, read_members
from headwater.data.pickles import read_pickle
from headwater.data.store import Archive, Array, broken

Found = tuple[list[Array], Path]  # x_train, y_train, x_test, y_test and where they were found
Batch = tuple[Array, Array]
CIFAR10 = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]  # the last one is the test part
CIFAR100 = ["train", "test"]
SIDE = 96  # of STL-10's images, which are read at a third of it
MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
LETTERS = tuple(f"emnist-letters-{name.replace('t10k', 'test')}" for name in MNIST)


def cifar(folder: Path, classes: int, label: str) -> Found | None:
    """CIFAR's python or binary version, as a folder or as the archive it comes in. `label` is what the python version
    calls the wanted labels."""
    stems = CIFAR10 if classes == 10 else CIFAR100
    before = ["labels"] if classes == 10 else ["coarse_labels", "fine_labels"]  # the bytes before a binary image
    python: Parse[Batch] = partial(_python, label=label)
    binary: Parse[Batch] = partial(_binary, before=before, label=label)
    folders = ("batches-py", "batches-bin") if classes == 10 else ("python", "binary")
    for inside, version, ending, parse in ((folders[0], "python", "", python), (folders[1], "binary", ".bin", binary)):
        names = [f"{stem}{ending}" for stem in stems]
        where = f"cifar-{classes}-{inside}", f"cifar-{classes}-{version}.tar.gz"
        found = read_members(folder, *where, dict.fromkeys(names, parse))
        if found is not None:
            made, path = found
            return [*joined([made[name] for name in names[:-1]]), *made[names[-1]]], path
    return None


def stl10(folder: Path, part: str) -> Found | None:
    """STL-10's binary version at 32 px. `part` is "train" or "unlabeled"; the latter has the label 0 throughout."""
    wanted: dict[str, Parse[Array]] = dict.fromkeys((f"{part}_X.bin", "test_X.bin"), _stl_images)
    wanted["test_y.bin"] = _stl_labels
    if part == "train":
        wanted["train_y.bin"] = _stl_labels
    found = read_members(folder, "stl10_binary", "stl10_binary.tar.gz", wanted)
    if found is None:
        return None
    made, path = found
    x = made[f"{part}_X.bin"]
    return [x, made.get("train_y.bin", np.zeros(len(x), dtype=np.uint8)), made["test_X.bin"], made["test_y.bin"]], path


def idx_images(folder: Path, names: Sequence[str] = MNIST) -> Found | None:
    """From the four idx files of the MNIST family, packed or not."""
    paths = [first_file(folder, (f"{name}.gz", name)) for name in names]
    there = [path for path in paths if path is not None]
    if len(there) < 4:
        return None
    parts: list[Array] = []
    for path in there:
        try:
            parts.append(_idx(path.read_bytes(), path.name))
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise broken(path, error) from error
    return parts, folder


def emnist_letters(folder: Path) -> Found | None:
    """EMNIST's letters from the archive of all its parts, from the folder that this unpacks to, or from the files."""
    path = folder / "gzip.zip"
    found = idx_images(folder, LETTERS) or idx_images(folder / "gzip", LETTERS)
    if found is None and path.is_file():
        parts = []
        with Archive(path) as archive:
            for name in LETTERS:
                try:
                    parts.append(_idx(archive.read(f"gzip/{name}.gz"), f"{name}.gz"))
                except (OSError, EOFError, zlib.error, ValueError) as error:
                    raise broken(path, f"{name}.gz: {error}") from error
        found = parts, path
    if found is None:
        return None
    x_train, y_train, x_test, y_test = found[0]
    for y in (y_train, y_test):
        if y.size and not 1 <= y.min() <= y.max() <= 26:
            raise broken(found[1], f"its labels go from {y.min()} to {y.max()} instead of from 1 to 26")
    # Its authors wrote the images column by column.
    return [x_train.transpose(0, 2, 1), y_train - 1, x_test.transpose(0, 2, 1), y_test - 1], found[1]


def tiny_imagenet(path: Path, each: int = 50) -> tuple[Array, Array, list[str]]:
    """The first images of each of the 200 classes, averaged from 64 to 32 px, classes interleaved; and class names.
    `path` is the archive or the folder that it unpacks to."""
    if path.is_dir():
        return _tiny(path, partial(_from_folder, path.parent), each)
    with Archive(path) as archive:
        return _tiny(path, archive.read, each)


def joined(batches: list[Batch]) -> Batch:
    """Batches one after the other. Each is let go of once it is copied, since some sets fill half of a memory."""
    y = np.concatenate([batch[1] for batch in batches])
    x = np.empty((len(y), *batches[0][0].shape[1:]), dtype=np.uint8)
    at = 0
    while batches:
        part = batches.pop(0)[0]
        x[at : at + len(part)] = part
        at += len(part)
    return x, y


def channels_first(x: Array) -> Array:
    """Colour images as (n, 3, height, width), whichever way round they come."""
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[3] == 3 else x


def batch_of(content: Any, label: str) -> Batch:
    """Images and labels of a dictionary with rows of 3072 values, whether it was written by Python 2 or 3."""
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


def _python(content: IO[bytes], label: str) -> Batch:
    return batch_of(read_pickle(content.read()), label)


def _binary(content: IO[bytes], before: Sequence[str], label: str) -> Batch:
    """For each image its label or labels, a byte each, then 1024 red, green and blue values."""
    raw = content.read()
    width = len(before) + 3072
    if not raw or len(raw) % width:
        raise ValueError("it is not a whole number of images long")
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, width)
    return rows[:, len(before) :].reshape(-1, 3, 32, 32), rows[:, before.index(label)]


def _stl_images(content: IO[bytes]) -> Array:
    """Each image is red, green and blue, column by column; it is averaged over 3 x 3 px."""
    parts = []
    while raw := content.read(500 * 3 * SIDE * SIDE):
        if len(raw) % (3 * SIDE * SIDE):
            raise ValueError("it is not a whole number of images long")
        cells = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3, SIDE // 3, 3, SIDE // 3, 3)
        means = (cells.sum(axis=(3, 5), dtype=np.uint16) + 4) // 9
        parts.append(means.astype(np.uint8).transpose(0, 1, 3, 2))
    if not parts:
        raise ValueError("it is empty")
    return np.concatenate(parts)


def _stl_labels(content: IO[bytes]) -> Array:
    y = np.frombuffer(content.read(), dtype=np.uint8)
    if not len(y) or not 1 <= y.min() <= y.max() <= 10:
        raise ValueError("its labels are not all from 1 to 10")
    return y - 1


def _idx(raw: bytes, name: str) -> Array:
    raw = gzip.decompress(raw) if name.endswith(".gz") else raw
    magic = 2051 if "images" in name else 2049
    axes = magic & 0xFF
    header = np.frombuffer(raw[: 4 + 4 * axes], dtype=">i4") if len(raw) >= 4 + 4 * axes else np.zeros(1)
    if header[0] != magic:
        raise ValueError("its first bytes are not those of an idx file of this kind")
    shape = tuple(int(size) for size in header[1:])
    if len(raw) != 4 + 4 * axes + int(np.prod(shape)):
        raise ValueError(f"its length does not fit the {shape} values that it announces")
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def _tiny(path: Path, read: Callable[[str], bytes], each: int) -> tuple[Array, Array, list[str]]:
    from PIL import Image, UnidentifiedImageError

    top = "tiny-imagenet-200"
    try:
        lines = read(f"{top}/words.txt").decode("utf-8").splitlines()
        kinds = sorted(read(f"{top}/wnids.txt").decode("utf-8").split())
    except UnicodeDecodeError as error:
        raise broken(path, f"its list of classes: {error}") from error
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    images: list[Array] = []
    for number in range(each):
        for kind in kinds:
            name = f"{top}/train/{kind}/images/{kind}_{number}.JPEG"
            try:
                with Image.open(io.BytesIO(read(name))) as picture:
                    pixels = np.asarray(picture.convert("RGB"), dtype=np.float32)
                means = pixels.reshape(32, 2, 32, 2, 3).mean(axis=(1, 3))
            except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
                raise broken(path, f"{name}: {error}") from error
            images.append(np.round(means).astype(np.uint8))
    if not images:
        raise broken(path, "it lists no classes")
    return np.stack(images), np.tile(np.arange(len(kinds)), each), [words.get(kind, kind) for kind in kinds]


def _from_folder(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise broken(folder / name, error.strerror) from error
