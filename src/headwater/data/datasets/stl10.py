"""STL-10: photographs of 96 x 96 px, averaged to 32 x 32."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from headwater.data import DatasetInfo
from headwater.data.base import Data
from headwater.data.datasets.images import Found, image_set, read_members
from headwater.data.files import Array, HubLayout, Parse, Published, PublishedFile

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE = 96  # px of the published images, which are read at a third of it
SOURCE = "https://cs.stanford.edu/~acoates/stl10"
FILES = {
    "stl10_binary.tar.gz": PublishedFile("91f7769df0f17e558f3565bffb0c7dfb", 2_640_397_119),
    "train_X.bin": PublishedFile("918c2871b30a85fa023e0c44e0bee87f", 138_240_000),
    "train_y.bin": PublishedFile("5a34089d4802c674881badbb80307741", 5_000),
    "test_X.bin": PublishedFile("7f263ba9f9e0b06b93213547f721ac82", 221_184_000),
    "test_y.bin": PublishedFile("36f9794fa4beb8a2c72628de14fa638e", 8_000),
    "unlabeled_X.bin": PublishedFile("5242ba1fed5e4be9e1e742405eb56ca4", 2_764_800_000),
}
PUBLISHED = {
    "stl10": Published(
        SOURCE,
        ("stl10_binary.tar.gz",),
        FILES,
        hub="tanganke/stl10",
        layout=HubLayout(CLASSES, SIDE, shrink=3),
    ),
    "stl10_unlabelled": Published(SOURCE, ("stl10_binary.tar.gz",), FILES),
}


@DatasetInfo("stl10", "13 000 photographs brought to 32 x 32 colour, 10 classes")
def stl10(data_dir: Path | None = None) -> Data:
    """STL-10's labelled images, averaged from 96 to 32 px.

    Args:
        data_dir: the data directory; None for the default one.
    """
    return image_set("stl10", data_dir, partial(_read, part="train"), CLASSES)


@DatasetInfo("stl10_unlabelled", "100 000 photographs without labels; a reference set only", unlabelled=True)
def stl10_unlabelled(data_dir: Path | None = None) -> Data:
    """STL-10's images without labels at 32 px, for a reference set; all have the label 0, which means nothing.

    Args:
        data_dir: the data directory; None for the default one.
    """
    return image_set("stl10_unlabelled", data_dir, partial(_read, part="unlabeled"), CLASSES, folder="stl10")


def _read(folder: Path, part: str) -> Found | None:
    """Read the binary version at 32 px. `part` is "train" or "unlabeled"; all labels of the latter are 0."""
    wanted: dict[str, Parse[Array]] = dict.fromkeys((f"{part}_X.bin", "test_X.bin"), _images)
    wanted["test_y.bin"] = _labels
    if part == "train":
        wanted["train_y.bin"] = _labels
    members = read_members(folder, "stl10_binary", "stl10_binary.tar.gz", wanted)
    if members is None:
        return None
    arrays, path = members
    x = arrays[f"{part}_X.bin"]
    y = arrays.get("train_y.bin", np.zeros(len(x), dtype=np.uint8))
    return [x, y, arrays["test_X.bin"], arrays["test_y.bin"]], path


def _images(content: IO[bytes]) -> Array:
    """Parse images, and average them over 3 x 3 px. Each is stored as a red, green and blue plane, column by column."""
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


def _labels(content: IO[bytes]) -> Array:
    y = np.frombuffer(content.read(), dtype=np.uint8)
    if not len(y) or not 1 <= y.min() <= y.max() <= 10:
        raise ValueError("its labels are not all from 1 to 10")
    return y - 1
