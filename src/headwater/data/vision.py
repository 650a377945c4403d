"""Image sets by name: the one that comes with scikit-learn, and those read from the data directory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from headwater.data.base import Data
from headwater.data.files import FOUR, fifth
from headwater.data.official import cifar10_batches, idx_images, tiny_imagenet
from headwater.data.store import Archive, Array, absent, broken, read_npz, root
from headwater.errors import DataError

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GARMENTS = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def digits(data_dir: Path | None = None) -> Data:
    """scikit-learn's handwritten digits; grey levels 0 to 16 become -1 to 1.

    Its file is read as it is: a line of 64 grey levels and the label for each image. Importing the package would take
    longer than all else that a short run does.
    """
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError(
            "digits come with scikit-learn, which is not installed; install it with: pip install scikit-learn"
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        raise DataError(f"digits come with scikit-learn, but {path} is not there; install scikit-learn again")
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.uint8, ndmin=2)
        images = table[:, :64].reshape(-1, 8, 8)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise broken(path, error) from error
    if table.shape[1] != 65:
        raise broken(path, f"a line has {table.shape[1]} values instead of 65")
    x = (images.astype(np.float32) / 8.0 - 1.0)[:, None]
    return Data(*fifth(x, table[:, 64].astype(np.int64), "digits"), name="digits")


def fashion_mnist(data_dir: Path | None = None) -> Data:
    """Zalando's garments, from fashion_mnist.npz or the four idx files."""
    folder = root(data_dir) / "fashion_mnist"
    path = folder / "fashion_mnist.npz"
    if path.is_file():
        arrays = read_npz(path)
        missing = [key for key in FOUR if key not in arrays]
        if missing:
            raise broken(path, f"it lacks {', '.join(missing)}")
        parts = [arrays[key] for key in FOUR]
    else:
        path = folder
        found = idx_images(folder)
        if found is None:
            source = "https://github.com/zalandoresearch/fashion-mnist"
            raise absent(
                "fashion_mnist", folder / "fashion_mnist.npz", source, "train-images-idx3-ubyte.gz and its kin"
            )
        parts = found
    return _checked(path, parts, "fashion_mnist", GARMENTS)


def cifar10(data_dir: Path | None = None) -> Data:
    """CIFAR-10, from lossless strips in a zip or from the python or binary version of its authors."""
    folder = root(data_dir) / "cifar10"
    path = folder / "cifar10_lossless_webp.zip"
    if path.is_file():
        with Archive(path) as archive:
            train = [archive.strips("train_", 32), archive.array("train_labels.npy")]
            parts = [*train, archive.strips("test_", 32), archive.array("test_labels.npy")]
    else:
        found = cifar10_batches(folder)
        if found is None:
            source = "https://www.cs.toronto.edu/~kriz/cifar.html"
            raise absent("cifar10", path, source, "cifar-10-python.tar.gz")
        parts, path = found
    return _checked(path, parts, "cifar10", CIFAR10)


def tiny_imagenet32(data_dir: Path | None = None) -> Data:
    """Fifty images of each class. Classes are interleaved, so the last fifth, the test part here, is balanced."""
    folder = root(data_dir) / "tiny_imagenet32"
    path, original = folder / "tiny_imagenet32_lossless_webp.zip", folder / "tiny-imagenet-200.zip"
    if path.is_file():
        with Archive(path) as archive:
            x, y = archive.strips("ref_", 32), archive.array("ref_labels.npy")
            rows = [line.split("\t") for line in archive.text("classes.tsv").splitlines()]
        names = [row[-1] for row in rows if row[0].isdigit()]
    elif original.is_file():
        path = original
        x, y, names = tiny_imagenet(path)
    else:
        raise absent("tiny_imagenet32", path, "http://cs231n.stanford.edu", original.name)
    cut = len(x) - len(x) // 5
    if len(x) != len(y):
        raise broken(path, f"{len(x)} images but {len(y)} labels")
    return _checked(path, [x[:cut], y[:cut], x[cut:], y[cut:]], "tiny_imagenet32", names)


def _checked(path: Path, parts: Sequence[Array], name: str, names: Sequence[str]) -> Data:
    """What does not fit together in a published set is damage to its file."""
    try:
        return Data(*parts, name=name, class_names=names)
    except DataError as error:
        raise broken(path, error) from error
