"""Sets that need no data directory: scikit-learn's digits, and a toy set of three classes in the plane."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.rng import stream
from headwater.data import DatasetInfo
from headwater.data.base import Data, fifth_of, held_out
from headwater.data.files import broken, reading
from headwater.errors import DataError

REACH = 3.0  # the toy set lies in (-REACH, REACH) in both directions
CLASSES = 3
TRAIN, TEST = 900, 1500
FAR, WIDE = 1.6, 0.65  # distance of the class centres from the origin, and standard deviation around them


@DatasetInfo("digits", "1 797 handwritten digits, 8 x 8 grey, 10 classes; embedded")
def digits(data_dir: Path | None = None) -> Data:
    """scikit-learn's handwritten digits; grey levels 0 to 16 become -1 to 1.

    The package's file is read directly, since importing scikit-learn would take longer than a short run. It has one
    line per image: 64 grey levels and the label.

    Args:
        data_dir: not used.
    """
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError(
            "digits come with scikit-learn, which is not installed; install it with: pip install scikit-learn"
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        raise DataError(f"digits come with scikit-learn, but {path} is not there; install scikit-learn again")
    table = _lines(path)
    x = (table[:, :64].reshape(-1, 8, 8).astype(np.float32) / 8.0 - 1.0)[:, None]
    y = table[:, 64].astype(np.int64)
    return held_out(x, y, fifth_of(x, y, "digits"), name="digits")


@cache  # parsing the text takes longer than all other preparation of a small run
def _lines(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with reading(path), gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8, ndmin=2)
    if table.shape[1] != 65:
        raise broken(path, f"a line has {table.shape[1]} values instead of 65")
    return table


@DatasetInfo("toy2d", "2 400 points of the plane, 3 classes, drawn by itself; embedded")
def toy2d(data_dir: Path | None = None) -> Data:
    """Points around the corners of a triangle, one corner per class, with a little overlap. Always the same points.

    Args:
        data_dir: not used.
    """
    rng = stream(0, "toy2d")
    return Data(*_clouds(TRAIN, rng), *_clouds(TEST, rng), name="toy2d")


def anywhere(count: int, shape: tuple[int, ...], classes: int, seed: int) -> Tensor:
    """Reference set for toy2d: `data.reference = "headwater.data.datasets.embedded:anywhere"`.

    Args:
        count: the number of points, which are uniform over the square that toy2d lies in.
        shape: of one point.
        classes: not used.
        seed: of the draw.

    >>> bool(anywhere(60, (2,), 3, 0).abs().max() < REACH)
    True
    """
    drawn = stream(seed, "toy2d", "anywhere").uniform(-REACH, REACH, (count, *shape))
    return torch.from_numpy(drawn.astype(np.float32))


def _clouds(rows: int, rng: np.random.Generator) -> tuple[Any, Any]:
    y = np.arange(rows) % CLASSES
    angle = np.pi / 2 + 2 * np.pi * y / CLASSES
    centre = FAR * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    x = centre + WIDE * rng.normal(size=(rows, 2))
    return np.clip(x, -REACH, REACH).astype(np.float32), y
