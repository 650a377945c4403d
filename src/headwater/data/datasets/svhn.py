"""SVHN: 32 x 32 house numbers, in the MATLAB files of its authors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from headwater.data import DatasetInfo
from headwater.data.base import Data
from headwater.data.datasets.images import DIGITS, Batch, Found, as_data, channels_first, find, image_set, joined
from headwater.data.files import HubLayout, Published, PublishedFile, read_file

SOURCE, HUB = "http://ufldl.stanford.edu/housenumbers", "ufldl-stanford/svhn"
FILES = {
    "train_32x32.mat": PublishedFile("e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
    "test_32x32.mat": PublishedFile("eb5a983be6a315427106f1b164d9cef3", 64_275_384),
    "extra_32x32.mat": PublishedFile("a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602),
}
PUBLISHED = {
    "svhn": Published(
        SOURCE,
        ("train_32x32.mat", "test_32x32.mat"),
        FILES,
        hub=HUB,
        layout=HubLayout(DIGITS, 32, config="cropped_digits"),
    ),
    "svhn_extra": Published(
        SOURCE,
        ("extra_32x32.mat", "test_32x32.mat"),
        FILES,
        hub=HUB,
        layout=HubLayout(DIGITS, 32, config="cropped_digits", train="extra"),
    ),
}


@DatasetInfo("svhn", "99 289 house numbers, 32 x 32 colour, 10 classes (extra)")
def svhn(data_dir: Path | None = None, *, extra: bool = False) -> Data:
    """House numbers, from train_32x32.mat and test_32x32.mat; `extra` adds those of extra_32x32.mat for training.

    Args:
        data_dir: the data directory; None for the default one.
        extra: add the digits of extra_32x32.mat to the training part.
    """
    parts, path = find("svhn", data_dir, partial(_read, part="train"))
    if extra:
        more = find("svhn_extra", data_dir, partial(_read, part="extra"), folder="svhn")[0]
        parts = [*joined([(channels_first(x), y) for x, y in (parts[:2], more[:2])]), *parts[2:]]
        parts[2] = channels_first(parts[2])
    return as_data(path, parts, "svhn", DIGITS)


@DatasetInfo("svhn_extra", "531 131 easier house numbers; a reference set for svhn")
def svhn_extra(data_dir: Path | None = None) -> Data:
    """The extra digits of SVHN, with its test part: a reference set for svhn.

    Args:
        data_dir: the data directory; None for the default one.
    """
    return image_set("svhn_extra", data_dir, partial(_read, part="extra"), DIGITS, folder="svhn")


def _read(folder: Path, part: str) -> Found | None:
    """The part "train" or "extra" for training, and the test part; None if one of the files is not there."""
    paths = [folder / f"{name}_32x32.mat" for name in (part, "test")]
    if not all(path.is_file() for path in paths):
        return None
    train, test = (read_file(path, _parse) for path in paths)
    return [*train, *test], folder


def _parse(content: IO[bytes]) -> Batch:
    from scipy.io import loadmat

    variables = loadmat(content, variable_names=("X", "y"))
    if "X" not in variables or "y" not in variables:
        raise ValueError("it has no X or no y")
    x, y = variables["X"], variables["y"].reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        raise ValueError(f"its X is {x.dtype} of shape {x.shape} instead of bytes of shape (32, 32, 3, n)")
    if len(y) != x.shape[3] or not len(y):
        raise ValueError(f"{x.shape[3]} images but {len(y)} labels")
    if y.dtype.kind not in "iu" or not 1 <= y.min() <= y.max() <= 10:
        raise ValueError("its labels are not all from 1 to 10")
    return x.transpose(3, 2, 0, 1), y % 10  # the digit 0 has the label 10
