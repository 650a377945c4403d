"""Image sets by name: the one that comes with scikit-learn, and those read from the data directory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from headwater.data import class_names as names
from headwater.data import hub, imagenet, mat, official
from headwater.data.base import Data
from headwater.data.files import FOUR, fifth
from headwater.data.published import PUBLISHED
from headwater.data.store import Archive, Array, absent, broken, read_npz, root
from headwater.errors import DataError

Read = Callable[[Path], official.Found | None]


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


def mnist(data_dir: Path | None = None) -> Data:
    """Handwritten digits, from the four idx files or mnist.npz."""
    return _listed("mnist", data_dir, official.idx_images, names.DIGITS)


def fashion_mnist(data_dir: Path | None = None) -> Data:
    """Zalando's garments, from the four idx files or fashion_mnist.npz."""
    return _listed("fashion_mnist", data_dir, official.idx_images, names.GARMENTS)


def emnist_letters(data_dir: Path | None = None) -> Data:
    """Handwritten letters, capital and small ones in one class, from EMNIST's idx files or the archive of them."""
    return _listed("emnist_letters", data_dir, official.emnist_letters, names.LETTERS)


def cifar10(data_dir: Path | None = None) -> Data:
    """CIFAR-10, from lossless strips in a zip or from the python or binary version of its authors."""

    def read(folder: Path) -> official.Found | None:
        return _strips(folder) or official.cifar(folder, 10, "labels")

    return _listed("cifar10", data_dir, read, names.CIFAR10)


def cifar100(data_dir: Path | None = None, *, coarse: bool = False) -> Data:
    """CIFAR-100, from the python or binary version of its authors: 100 classes, or 20 with `coarse`."""
    read = partial(official.cifar, classes=100, label="coarse_labels" if coarse else "fine_labels")
    keys = ("x_train", "y_coarse_train", "x_test", "y_coarse_test") if coarse else FOUR
    return _listed("cifar100", data_dir, read, names.CIFAR100_COARSE if coarse else names.CIFAR100, keys=keys)


def svhn(data_dir: Path | None = None, *, extra: bool = False) -> Data:
    """House numbers, from train_32x32.mat and test_32x32.mat; `extra` adds those of extra_32x32.mat for training."""
    parts, path = _found("svhn", data_dir, partial(mat.svhn, part="train"))
    if extra:
        more = _found("svhn_extra", data_dir, partial(mat.svhn, part="extra"), folder="svhn")[0]
        parts = [*official.joined([(official.channels_first(x), y) for x, y in (parts[:2], more[:2])]), *parts[2:]]
        parts[2] = official.channels_first(parts[2])
    return _checked(path, parts, "svhn", names.DIGITS)


def svhn_extra(data_dir: Path | None = None) -> Data:
    """The extra digits of SVHN, with its test part: a reference set for svhn."""
    return _listed("svhn_extra", data_dir, partial(mat.svhn, part="extra"), names.DIGITS, folder="svhn")


def stl10(data_dir: Path | None = None) -> Data:
    """STL-10's labelled images, averaged from 96 to 32 px."""
    return _listed("stl10", data_dir, partial(official.stl10, part="train"), names.STL10)


def stl10_unlabelled(data_dir: Path | None = None) -> Data:
    """STL-10's images without labels at 32 px, for a reference set; all have the label 0, which means nothing."""
    read = partial(official.stl10, part="unlabeled")
    return _listed("stl10_unlabelled", data_dir, read, names.STL10, folder="stl10")


def imagenet32(data_dir: Path | None = None, *, batches: Annotated[int, Ge(1), Le(imagenet.BATCHES)] = 10) -> Data:
    """ImageNet at 32 px, from its pickled or .npz batches. All ten fill 4 GB; `batches` reads the first so many."""
    folder = root(data_dir) / "imagenet32"
    return _listed("imagenet32", data_dir, partial(imagenet.imagenet32, batches=batches), imagenet.class_names(folder))


def tiny_imagenet32(data_dir: Path | None = None) -> Data:
    """Fifty images of each class. Classes are interleaved, so the last fifth, the test part here, is balanced."""
    folder = root(data_dir) / "tiny_imagenet32"
    path = folder / "tiny_imagenet32_lossless_webp.zip"
    original = folder / "tiny-imagenet-200"
    if not original.is_dir():
        original = folder / "tiny-imagenet-200.zip"
    if path.is_file():
        with Archive(path) as archive:
            x, y = archive.strips("ref_", 32), archive.array("ref_labels.npy")
            rows = [line.split("\t") for line in archive.text("classes.tsv").splitlines()]
        classes = [row[-1] for row in rows if row[0].isdigit()]
    elif original.exists():
        path = original
        x, y, classes = official.tiny_imagenet(path)
    else:
        raise absent("tiny_imagenet32", path, PUBLISHED["tiny_imagenet32"].source, original.name)
    cut = len(x) - len(x) // 5
    if len(x) != len(y):
        raise broken(path, f"{len(x)} images but {len(y)} labels")
    return _checked(path, [x[:cut], y[:cut], x[cut:], y[cut:]], "tiny_imagenet32", classes)


def _listed(
    name: str, data_dir: Path | None, read: Read, classes: Sequence[str], keys: Sequence[str] = FOUR, folder: str = ""
) -> Data:
    parts, path = _found(name, data_dir, read, keys, folder)
    return _checked(path, parts, name, classes)


def _found(
    name: str, data_dir: Path | None, read: Read, keys: Sequence[str] = FOUR, folder: str = ""
) -> official.Found:
    """The four arrays from name.npz, from the authors' files or, if the user agrees, from the hub."""
    place = root(data_dir) / (folder or name)
    path = place / f"{name}.npz"
    found = _arrays(path, keys) or read(place)
    if found is None and name in hub.HUB and hub.agreed():
        hub.fetch(name, path)
        found = _arrays(path, keys)
    if found is None:
        known = PUBLISHED[name]
        raise absent(name, path, known.source, f"{'all of ' if len(known.get) > 1 else ''}{', '.join(known.get)}")
    return found


def _arrays(path: Path, keys: Sequence[str]) -> official.Found | None:
    if not path.is_file():
        return None
    arrays = read_npz(path)
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise broken(path, f"it lacks {', '.join(missing)}")
    return [arrays[key] for key in keys], path


def _strips(folder: Path) -> official.Found | None:
    path = folder / "cifar10_lossless_webp.zip"
    if not path.is_file():
        return None
    with Archive(path) as archive:
        train = [archive.strips("train_", 32), archive.array("train_labels.npy")]
        return [*train, archive.strips("test_", 32), archive.array("test_labels.npy")], path


def _checked(path: Path, parts: Sequence[Array], name: str, classes: Sequence[str]) -> Data:
    """What does not fit together in a published set is damage to its file."""
    try:
        made = Data(*parts, name=name, class_names=classes)
    except DataError as error:
        raise broken(path, error) from error
    wanted = (1, 28, 28) if "mnist" in name else (3, 32, 32)
    if made.shape != wanted:
        raise broken(path, f"its images have the shape {made.shape} instead of {wanted}")
    return made
