"""Data of one's own, from a file."""

from __future__ import annotations

from pathlib import Path

from headwater.data.base import Data
from headwater.data.store import Array, read_npz
from headwater.errors import DataError
from headwater.rng import stream

FOUR = ("x_train", "y_train", "x_test", "y_test")


def npz(path: Path) -> Data:
    """A .npz file with x_train, y_train, x_test, y_test, or with x and y, of which a fixed fifth is for tests.

    A text array class_names is used if it is there.
    """
    path = path.expanduser()
    arrays = read_npz(path)
    names = [str(name) for name in arrays["class_names"]] if "class_names" in arrays else None
    if all(key in arrays for key in FOUR):
        parts = [arrays[key] for key in FOUR]
    elif "x" in arrays and "y" in arrays:
        parts = list(fifth(arrays["x"], arrays["y"], str(path)))
    else:
        found = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} holds {found}; it needs x_train, y_train, x_test and y_test, or x and y")
    try:
        return Data(*parts, name=str(path), class_names=names)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def fifth(x: Array, y: Array, what: str) -> tuple[Array, Array, Array, Array]:
    """Training and test part of a set without one. The same fifth for every seed, so that scores can be compared."""
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise DataError(
            f"{what} has inputs of shape {x.shape} and labels of shape {y.shape}; each sample needs one label"
        )
    if len(x) < 5:
        raise DataError(f"{what} has {len(x)} samples; at least 5 are needed to set a fifth aside for tests")
    order = stream(0, "test split").permutation(len(x))
    cut = len(x) // 5
    test, train = order[:cut], order[cut:]
    train.sort()
    test.sort()
    return x[train], y[train], x[test], y[test]
