"""Data of one's own, from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headwater.core.rng import stream
from headwater.data.base import Data
from headwater.data.store import Array, read_npz
from headwater.errors import DataError
from headwater.partition.rows import kept

FOUR = ("x_train", "y_train", "x_test", "y_test")


def npz(path: Path) -> Data:
    """A .npz file with x_train, y_train, x_test, y_test, or with x and y, of which a fixed fifth is for tests.

    A text array class_names is used if it is there. An array client with a name or number for each training sample,
    or each sample, says that the data is already split; an array sector says where those clients are.
    """
    path = path.expanduser()
    arrays = read_npz(path)
    names = [str(name) for name in arrays["class_names"]] if "class_names" in arrays else None
    owner, place = arrays.get("client"), arrays.get("sector")
    if all(key in arrays for key in FOUR):
        parts = [arrays[key] for key in FOUR]
    elif "x" in arrays and "y" in arrays:
        x, y = arrays["x"], arrays["y"]
        held = _held(x, y, str(path), owner)
        parts = [x[~held], y[~held], x[held], y[held]]
        owner, place = (None if given is None else given[~held] for given in (owner, place))
    else:
        found = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} holds {found}; it needs x_train, y_train, x_test and y_test, or x and y")
    try:
        return Data(*parts, name=str(path), class_names=names, client=owner, sector=place)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def fifth(x: Array, y: Array, what: str) -> tuple[Array, Array, Array, Array]:
    """Training and test part of a set without one. The same fifth for every seed, so that scores can be compared."""
    held = _held(x, y, what)
    return x[~held], y[~held], x[held], y[held]


def _held(x: Array, y: Array, what: str, owner: Array | None = None) -> Array:
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise DataError(
            f"{what} has inputs of shape {x.shape} and labels of shape {y.shape}; each sample needs one label"
        )
    if owner is not None and len(owner) != len(x):
        raise DataError(f"{what} has {len(owner)} entries in client for {len(x)} samples; give one for each")
    return held_for_tests(owner, len(x), what)


def held_for_tests(owner: Array | None, samples: int, what: str) -> Array:
    """Which samples are kept for tests: a fifth of each client's, or of all where nobody owns them yet. A client always
    has one to train on."""
    if samples < 5:
        raise DataError(f"{what} has {samples} samples; at least 5 are needed to set a fifth aside for tests")
    held = np.zeros(samples, dtype=bool)
    if owner is not None:
        names = np.array([str(name) for name in owner])
        for number, name in enumerate(sorted(set(names))):
            rows = np.flatnonzero(names == name)
            held[stream(0, "test split", number).permutation(rows)[: kept(len(rows), 1 / 5)]] = True
    if not held.any():
        held[stream(0, "test split").permutation(samples)[: samples // 5]] = True
    return held
