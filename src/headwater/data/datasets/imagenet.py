"""ImageNet and Tiny ImageNet at 32 px.

ImageNet comes in the batches of its authors: pickles or .npz files, in folders or in their archives.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import numpy as np
from annotated_types import Ge, Le

from headwater.data import DatasetInfo
from headwater.data.base import Data
from headwater.data.datasets.images import Batch, Found, as_data, batch_of, image_set, joined, read_pickle
from headwater.data.files import Archive, Array, Published, PublishedFile, absent, broken, read_file, reading, root

CLASSES, BATCHES = 1000, 10
TINY = "tiny-imagenet-200"
_FILES = {
    "train_data_batch_1": PublishedFile("6c4495e65cd24a8c3019857ef9b758ee"),
    "train_data_batch_2": PublishedFile("3dd727de4155836807dfc19f98c9fe70"),
    "train_data_batch_3": PublishedFile("03d3dc4e850e23e1d526f268a0196296"),
    "train_data_batch_4": PublishedFile("876f7e6d6ddb1f52ecb654ffdc8293f6"),
    "train_data_batch_5": PublishedFile("c789bcdd1feed34a9bc58598a1a1bf7d"),
    "train_data_batch_6": PublishedFile("8ce5344cb1e11f31bc507cae4c856083"),
    "train_data_batch_7": PublishedFile("32ecc8ad6c55b1c9cb6cf79a2cc46094"),
    "train_data_batch_8": PublishedFile("bdeb6da3d05771121992b48c59c69439"),
    "train_data_batch_9": PublishedFile("58417149b5ce31688f805341e7f57b4f"),
    "train_data_batch_10": PublishedFile("46ad60a1144aaf97a143914453b0dabb"),
    "val_data": PublishedFile("06c02b8b4c8de8b3a36b07859a49de6f"),
}
PUBLISHED = {
    "imagenet32": Published("https://image-net.org/download-images.php", tuple(_FILES), _FILES),
    "tiny_imagenet32": Published(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        ("tiny-imagenet-200.zip",),
        {
            "tiny-imagenet-200.zip": PublishedFile("90528d7ca1a48142e341f4ef8d21d0de", 248_100_043),
            "tiny_imagenet32_lossless_webp.zip": PublishedFile(
                "e207aa9faa731fc64cc2eb16a5066ffc178e04abc1c1c65e4e9e1a2f6cdd9d43"
            ),
        },
    ),
}


@DatasetInfo("imagenet32", "1 331 167 photographs, 32 x 32 colour, 1000 classes (batches)")
def imagenet32(data_dir: Path | None = None, *, batches: Annotated[int, Ge(1), Le(BATCHES)] = 10) -> Data:
    """ImageNet at 32 px, from its pickled or .npz batches. All ten fill 4 GB; `batches` is how many are read.

    Args:
        data_dir: the data directory; None for the default one.
        batches: how many of the ten training batches are read.
    """
    folder = root(data_dir) / "imagenet32"
    return image_set("imagenet32", data_dir, partial(_read, batches=batches), _class_names(folder))


@DatasetInfo("tiny_imagenet32", "10 000 photographs, 32 x 32 colour, 200 classes; a reference set for cifar10")
def tiny_imagenet32(data_dir: Path | None = None) -> Data:
    """Fifty images of each class. Classes are interleaved, so the last fifth, the test part here, is balanced.

    Args:
        data_dir: the data directory; None for the default one.
    """
    folder = root(data_dir) / "tiny_imagenet32"
    path = folder / "tiny_imagenet32_lossless_webp.zip"
    original = folder / TINY
    if not original.is_dir():
        original = folder / f"{TINY}.zip"
    if path.is_file():
        with Archive(path) as archive:
            x, y = archive.strips("ref_", 32), archive.array("ref_labels.npy")
            rows = [line.split("\t") for line in archive.text("classes.tsv").splitlines()]
        classes = [row[-1] for row in rows if row[0].isdigit()]
    elif original.exists():
        path = original
        x, y, classes = read_tiny(path)
    else:
        raise absent("tiny_imagenet32", path, PUBLISHED["tiny_imagenet32"].source, original.name)
    cut = len(x) - len(x) // 5
    if len(x) != len(y):
        raise broken(path, f"{len(x)} images but {len(y)} labels")
    return as_data(path, [x[:cut], y[:cut], x[cut:], y[cut:]], "tiny_imagenet32", classes)


def _read(folder: Path, batches: int = BATCHES) -> Found | None:
    """The first `batches` of the ten training batches, and the validation part for tests."""
    for ending in ("", ".npz"):
        train = _place(folder, "train", f"train_data_batch_1{ending}")
        test = _place(folder, "val", f"val_data{ending}")
        if train is not None and test is not None:
            parts = [train(f"train_data_batch_{number}{ending}") for number in range(1, batches + 1)]
            return [*joined(parts), *test(f"val_data{ending}")], folder
    return None


def _class_names(folder: Path) -> list[str]:
    """The names in map_clsloc.txt of the challenge, if it is beside the batches, else numbers from 1 on."""
    path = folder / "map_clsloc.txt"
    if not path.is_file():
        return [str(number) for number in range(1, CLASSES + 1)]
    with reading(path):
        rows = [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]
        words = {int(number) - 1: (word, kind) for kind, number, word in rows}
        if sorted(words) != list(range(CLASSES)):
            raise ValueError(f"it does not number {CLASSES} classes")
    counts = Counter(word for word, _ in words.values())  # some names occur twice, such as "crane"
    return [word if counts[word] == 1 else f"{word} ({kind})" for word, kind in (words[n] for n in range(CLASSES))]


def _place(folder: Path, part: str, first: str) -> Callable[[str], Batch] | None:
    """A function that reads a batch by its name, from the place where the first batch was found."""
    packed = f"Imagenet32_{part}{'_npz' if first.endswith('.npz') else ''}"
    for where in (folder, folder / packed):
        if (where / first).is_file():
            return partial(_batch_of_folder, where)
    archive = folder / f"{packed}.zip"
    return partial(_batch_of_zip, archive) if archive.is_file() else None


def _batch_of_folder(folder: Path, name: str) -> Batch:
    return read_file(folder / name, partial(_parse, name))


def _batch_of_zip(path: Path, name: str) -> Batch:
    with Archive(path) as archive:
        member = next((inside for inside in archive.names("", name) if inside.split("/")[-1] == name), name)
        content = io.BytesIO(archive.read(member))
    with reading(path, name):
        return _parse(name, content)


def _parse(name: str, content: IO[bytes]) -> Batch:
    if name.endswith(".npz"):
        with np.load(content, allow_pickle=False) as arrays:
            x, y = batch_of({key: arrays[key] for key in arrays.files if key in ("data", "labels")}, "labels")
    else:
        x, y = batch_of(read_pickle(content.read()), "labels")
    if not 1 <= y.min() <= y.max() <= CLASSES:
        raise ValueError(f"its labels go from {y.min()} to {y.max()} instead of from 1 to {CLASSES}")
    return x, y - 1


def read_tiny(path: Path, each: int = 50) -> tuple[Array, Array, list[str]]:
    """The first images of each class of Tiny ImageNet, averaged from 64 to 32 px.

    Args:
        path: the archive, or the folder that it unpacks to.
        each: the number of images per class.

    Returns:
        Images with the classes interleaved, labels and class names.
    """
    if path.is_dir():
        return _tiny(path, partial(_file_of_folder, path.parent), each)
    with Archive(path) as archive:
        return _tiny(path, archive.read, each)


def _tiny(path: Path, read: Callable[[str], bytes], each: int) -> tuple[Array, Array, list[str]]:
    from PIL import Image

    with reading(path, "its list of classes"):
        lines = read(f"{TINY}/words.txt").decode("utf-8").splitlines()
        kinds = sorted(read(f"{TINY}/wnids.txt").decode("utf-8").split())
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    images: list[Array] = []
    for number in range(each):
        for kind in kinds:
            name = f"{TINY}/train/{kind}/images/{kind}_{number}.JPEG"
            with reading(path, name), Image.open(io.BytesIO(read(name))) as picture:
                pixels = np.asarray(picture.convert("RGB"), dtype=np.float32)
                images.append(np.round(pixels.reshape(32, 2, 32, 2, 3).mean(axis=(1, 3))).astype(np.uint8))
    if not images:
        raise broken(path, "it lists no classes")
    return np.stack(images), np.tile(np.arange(len(kinds)), each), [words.get(kind, kind) for kind in kinds]


def _file_of_folder(folder: Path, name: str) -> bytes:
    with reading(folder / name):
        return (folder / name).read_bytes()
