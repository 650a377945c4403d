"""SVHN's cropped digits, from the MATLAB files of its authors."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np

from headwater.data.members import read_file
from headwater.data.official import Batch, Found


def svhn(folder: Path, part: str) -> Found | None:
    """The part "train" or "extra" for training, and the test part; none if one of the files is not there."""
    paths = [folder / f"{name}_32x32.mat" for name in (part, "test")]
    if not all(path.is_file() for path in paths):
        return None
    train, test = (read_file(path, _parse) for path in paths)
    return [*train, *test], folder


def _parse(content: IO[bytes]) -> Batch:
    from scipy.io import loadmat

    found = loadmat(content, variable_names=("X", "y"))
    if "X" not in found or "y" not in found:
        raise ValueError("it has no X or no y")
    x, y = found["X"], found["y"].reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        raise ValueError(f"its X is {x.dtype} of shape {x.shape} instead of bytes of shape (32, 32, 3, n)")
    if len(y) != x.shape[3] or not len(y):
        raise ValueError(f"{x.shape[3]} images but {len(y)} labels")
    if y.dtype.kind not in "iu" or not 1 <= y.min() <= y.max() <= 10:
        raise ValueError("its labels are not all from 1 to 10")
    return x.transpose(3, 2, 0, 1), y % 10  # the digit 0 has the label 10
