"""The MNIST family: 28 x 28 grey images in four idx files per set."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase

import numpy as np

from headwater.data import DatasetInfo
from headwater.data.base import Data
from headwater.data.datasets.images import DIGITS, GREY_28, Found, image_set
from headwater.data.files import Archive, Array, HubLayout, Published, PublishedFile, broken, first_file, reading

GARMENTS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
LETTERS = tuple(ascii_uppercase)
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
LETTER_FILES = tuple(f"emnist-letters-{name.replace('t10k', 'test')}" for name in FILES)
_DIGESTS = {
    "mnist": {
        "train-images-idx3-ubyte.gz": PublishedFile("f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        "train-labels-idx1-ubyte.gz": PublishedFile("d53e105ee54ea40749a09fcbcd1e9432"),
        "t10k-images-idx3-ubyte.gz": PublishedFile("9fb629c4189551a2d022fa330f9573f3"),
        "t10k-labels-idx1-ubyte.gz": PublishedFile("ec29112dd5afa0611ce80d1b7f02629c"),
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte.gz": PublishedFile("8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        "train-labels-idx1-ubyte.gz": PublishedFile("25c81989df183df01b3e8a0aad5dffbe"),
        "t10k-images-idx3-ubyte.gz": PublishedFile("bef4ecab320f06d8554ea6380940ec79"),
        "t10k-labels-idx1-ubyte.gz": PublishedFile("bb300cfdad3c16e7a12a480ee83cd310"),
    },
}
PUBLISHED = {
    "mnist": Published(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        tuple(_DIGESTS["mnist"]),
        _DIGESTS["mnist"],
        hub="ylecun/mnist",
        layout=HubLayout(DIGITS, 28, grey=True),
    ),
    "emnist_letters": Published(
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        ("gzip.zip",),
        {"gzip.zip": PublishedFile("58c8d27c78d21e728a6bc7b3cc06412e")},
    ),
    "fashion_mnist": Published(
        "https://github.com/zalandoresearch/fashion-mnist",
        tuple(_DIGESTS["fashion_mnist"]),
        _DIGESTS["fashion_mnist"]
        | {"fashion_mnist.npz": PublishedFile("c535ecffa67e2356b51371a57bad26ff4920241658c93839660c3e3ca1f35b06")},
        hub="zalando-datasets/fashion_mnist",
        layout=HubLayout(GARMENTS, 28, grey=True),
    ),
}


@DatasetInfo("mnist", "70 000 handwritten digits, 28 x 28 grey, 10 classes")
def mnist(data_dir: Path | None = None) -> Data:
    """Handwritten digits, from the four idx files or mnist.npz.

    Args:
        data_dir: the data directory; None for the default one.
    """
    return image_set("mnist", data_dir, _read_idx, DIGITS, shape=GREY_28)


@DatasetInfo("fashion_mnist", "70 000 garments, 28 x 28 grey, 10 classes")
def fashion_mnist(data_dir: Path | None = None) -> Data:
    """Zalando's garments, from the four idx files or fashion_mnist.npz.

    Args:
        data_dir: the data directory; None for the default one.
    """
    return image_set("fashion_mnist", data_dir, _read_idx, GARMENTS, shape=GREY_28)


@DatasetInfo("emnist_letters", "145 600 handwritten letters, 28 x 28 grey, 26 classes")
def emnist_letters(data_dir: Path | None = None) -> Data:
    """Handwritten letters, capital and small ones in one class, from EMNIST's idx files or the archive of them.

    Args:
        data_dir: the data directory; None for the default one.
    """
    return image_set("emnist_letters", data_dir, _read_letters, LETTERS, shape=GREY_28)


def _read_idx(folder: Path, names: Sequence[str] = FILES) -> Found | None:
    """Read the four idx files of the MNIST family, gzipped or not; None unless all are there."""
    paths = [first_file(folder, (f"{name}.gz", name)) for name in names]
    there = [path for path in paths if path is not None]
    if len(there) < 4:
        return None
    parts: list[Array] = []
    for path in there:
        with reading(path):
            parts.append(_idx(path.read_bytes(), path.name))
    return parts, folder


def _read_letters(folder: Path) -> Found | None:
    """Read EMNIST's letters from the archive of all its parts, the folder it unpacks to, or single files."""
    path = folder / "gzip.zip"
    letters = _read_idx(folder, LETTER_FILES) or _read_idx(folder / "gzip", LETTER_FILES)
    if letters is None and path.is_file():
        parts = []
        with Archive(path) as archive:
            for name in LETTER_FILES:
                with reading(path, f"{name}.gz"):
                    parts.append(_idx(archive.read(f"gzip/{name}.gz"), f"{name}.gz"))
        letters = parts, path
    if letters is None:
        return None
    x_train, y_train, x_test, y_test = letters[0]
    for y in (y_train, y_test):
        if y.size and not 1 <= y.min() <= y.max() <= 26:
            raise broken(letters[1], f"its labels go from {y.min()} to {y.max()} instead of from 1 to 26")
    # Its authors wrote the images column by column.
    return [x_train.transpose(0, 2, 1), y_train - 1, x_test.transpose(0, 2, 1), y_test - 1], letters[1]


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
