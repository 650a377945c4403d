"""From whatever arrays people have to the two tensors that training needs, or a sentence that says what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.errors import DataError


def inputs(values: Any, what: str, *, tokens: bool = False, missing: bool = False) -> Tensor:
    """Samples first, images as (n, channels, height, width). Bytes of images stay bytes until `as_float`. With
    `missing`, NaN stands for a value that is not there."""
    x = _tensor(values, what)
    if x.dim() < 2 or x.shape[0] == 0 or 0 in x.shape:
        raise DataError(
            f"{what} must hold samples along its first axis and at least one value each, got shape {_shape(x)}"
        )
    if tokens:
        if x.dtype.is_floating_point:
            raise DataError(f"{what} must hold whole numbers when tokens=True, got {_kind(x)}")
        return x.to(torch.int64)
    if x.dim() == 3:
        x = x.unsqueeze(1)
    if x.dim() == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.permute(0, 3, 1, 2)
    if x.dtype == torch.uint8 and x.dim() == 4:
        return x.contiguous()
    x = x.to(torch.float64 if missing else torch.float32).contiguous()  # large numbers keep their digits until scaled
    bad = torch.isinf(x) if missing else ~torch.isfinite(x)
    if bool(bad.any()):
        row = int(bad.flatten(1).any(dim=1).nonzero()[0])
        kinds = "infinite" if missing else "NaN or infinite"
        raise DataError(
            f"{what} holds {kinds} values, the first in sample {row}; replace them or leave those samples out"
        )
    return x


def as_float(x: Tensor) -> Tensor:
    """Bytes become float32 in [-1, 1] by a fixed rule, so that no party's statistics are needed; the rest stays."""
    return x.to(torch.float32).div_(127.5).sub_(1.0) if x.dtype == torch.uint8 else x


def labels(values: Any, what: str, samples: int) -> Tensor:
    """Whole numbers from 0 on, one a sample, as int64."""
    y = _tensor(values, what)
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dim() != 1:
        raise DataError(f"{what} must hold one label a sample, got shape {_shape(y)}; turn one-hot rows into numbers")
    if len(y) != samples:
        raise DataError(f"{what} has {len(y)} labels for {samples} samples; each sample needs exactly one")
    if y.dtype.is_floating_point and not bool((torch.isfinite(y) & (y == y.round())).all()):
        raise DataError(f"{what} holds labels that are not whole numbers; use 0, 1, 2, … for the classes")
    y = y.to(torch.int64)
    if int(y.min()) < 0:
        raise DataError(
            f"{what} holds the label {int(y.min())}; labels must be 0, 1, 2, … up to the number of classes - 1"
        )
    return y.contiguous()


def count_classes(y_train: Tensor, y_test: Tensor, names: tuple[str, ...] | None) -> int:
    """The number of classes: of the names if there are any, else found in the training labels."""
    highest = int(y_train.max())
    if names is not None:
        classes = len(names)
        if highest >= classes:
            raise DataError(f"there are {classes} class names but the label {highest} in y_train; name every class")
    else:
        classes = highest + 1
        present = torch.unique(y_train)
        if len(present) < classes:
            first = next(c for c, label in enumerate(present.tolist()) if c != label)
            raise DataError(
                f"y_train has labels up to {highest} but none is {first}; number the classes 0, 1, 2, … without gaps, "
                "or give class_names if a class is really without samples"
            )
    if classes < 2:
        raise DataError("all training labels are 0; a classifier needs at least two classes")
    if int(y_test.max()) >= classes:
        raise DataError(
            f"y_test holds the label {int(y_test.max())}, but the training classes are 0 to {classes - 1}; "
            "use the same numbering in both"
        )
    return classes


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        x = values.detach().cpu()
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise DataError(f"{what} is not a regular array ({error}); every sample needs the same shape") from error
        if array.dtype.kind not in "iuf":
            raise DataError(f"{what} has dtype {array.dtype}; use whole numbers or floats")
        if array.dtype in (np.uint16, np.uint32, np.uint64):
            array = array.astype(np.int64)
        elif array.dtype.kind == "f" and array.dtype.itemsize > 8:
            array = array.astype(np.float64)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # torch shares memory only with arrays that are writable and run forwards.
        x = torch.from_numpy(array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy())
    if x.dtype == torch.bool or x.dtype.is_complex:
        raise DataError(f"{what} has dtype {_kind(x)}; use whole numbers or floats")
    return x


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _kind(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
