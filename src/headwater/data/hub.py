"""Image sets from the Hugging Face hub, for whoever has a network and agrees. What comes is written to the data
directory once, as an .npz file, and read from there ever after."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headwater.data import class_names as names
from headwater.data.published import PUBLISHED
from headwater.data.store import FETCH, Array
from headwater.errors import DataError, MissingExtra, said


@dataclass(frozen=True)
class Columns:
    """How a set is laid out at the hub."""

    classes: Sequence[str]
    side: int
    image: str = "image"
    label: str = "label"
    coarse: str = ""  # a second kind of label
    config: str | None = None
    train: str = "train"
    test: str = "test"
    grey: bool = False
    shrink: int = 1  # means over so many px in either direction


HUB: dict[str, Columns] = {
    "cifar10": Columns(names.CIFAR10, 32, image="img"),
    "cifar100": Columns(names.CIFAR100, 32, image="img", label="fine_label", coarse="coarse_label"),
    "svhn": Columns(names.DIGITS, 32, config="cropped_digits"),
    "svhn_extra": Columns(names.DIGITS, 32, config="cropped_digits", train="extra"),
    "stl10": Columns(names.STL10, 96, shrink=3),
    "mnist": Columns(names.DIGITS, 28, grey=True),
    "fashion_mnist": Columns(names.GARMENTS, 28, grey=True),
}


def agreed() -> bool:
    """Whether the user has said that absent sets may be fetched."""
    return os.environ.get(FETCH, "").strip().lower() not in ("", "0", "no", "false", "off")


def fetch(name: str, path: Path, source: str | None = None) -> None:
    """Write a set to an .npz file. `source` is a copy of its repository, instead of the one at the hub."""
    where = source or PUBLISHED[name].hub
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingExtra(f"fetching {name} from the Hugging Face hub", "hub") from error
    layout = HUB[name]
    try:
        train, test = (load_dataset(where, layout.config, split=part) for part in (layout.train, layout.test))
    except Exception as error:  # the network, the hub and the library each have errors of their own
        raise DataError(
            f"{name} could not be fetched from the Hugging Face hub ({where}: {said(error)}); see to the network, or "
            f"get it from {PUBLISHED[name].source} and put it into {path.parent}"
        ) from error
    arrays: dict[str, Any] = {}
    for name_of_part, rows in (("train", train), ("test", test)):
        arrays |= {f"{key}_{name_of_part}": values for key, values in take(rows, layout, where).items()}
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DataError(
            f"{path} cannot be written ({error.strerror}); name another directory with --data-dir"
        ) from error


def take(rows: Any, layout: Columns, where: str) -> dict[str, Array]:
    """Images x, labels y and perhaps y_coarse of one part, a `datasets.Dataset`."""
    wanted = [column for column in (layout.image, layout.label, layout.coarse) if column]
    missing = [column for column in wanted if column not in rows.column_names]
    if missing:
        raise DataError(
            f"{where} has no column {missing[0]!r} (it has {', '.join(rows.column_names)}); it has changed since "
            "Headwater learnt of it, so get the official files instead"
        )
    side, by = layout.side // layout.shrink, layout.shrink
    x = np.empty((len(rows), side, side, 1 if layout.grey else 3), dtype=np.uint8)
    for number, row in enumerate(rows.select_columns([layout.image])):
        picture = row[layout.image].convert("L" if layout.grey else "RGB")
        if picture.size != (layout.side, layout.side):
            raise DataError(f"{where} has an image of {picture.size} px instead of {layout.side} x {layout.side}")
        x[number] = np.rint(np.asarray(picture).reshape(side, by, side, by, -1).mean(axis=(1, 3)))
    found = {"x": x, "y": _numbers(rows, layout.label, layout.classes, where)}
    if layout.coarse:
        found["y_coarse"] = _numbers(rows, layout.coarse, names.CIFAR100_COARSE, where)
    return found


def _numbers(rows: Any, column: str, classes: Sequence[str], where: str) -> Array:
    """Labels in our order of the classes, where the hub names them all alike, else in its own."""
    y = np.asarray(rows[column][:], dtype=np.int64)
    if not len(y) or not 0 <= y.min() <= y.max() < len(classes):
        raise DataError(
            f"{where} has labels in {column!r} that are not all from 0 to {len(classes) - 1}; it has changed"
        )
    theirs = list(getattr(rows.features[column], "names", None) or ())
    if sorted(theirs) == sorted(classes):
        y = np.array([classes.index(label) for label in theirs])[y]
    return y
