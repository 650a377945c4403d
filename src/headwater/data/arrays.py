"""Checks of arrays that users provide: inputs, labels, and the client that holds each row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.errors import DataError

Ints = np.ndarray[Any, np.dtype[np.int64]]
Names = Sequence[Any] | np.ndarray[Any, Any]  # one word or number per row


def inputs(values: Any, what: str, *, tokens: bool = False, missing: bool = False) -> Tensor:
    """Check inputs and convert them to a tensor with samples first and images as (n, channels, height, width).

    Args:
        values: an array, tensor or nested list. Images of bytes stay bytes until `as_float`.
        what: the name of the argument, for messages.
        tokens: whether they are token numbers, which become int64.
        missing: whether NaN stands for a missing value; the result is float64 then.

    Raises:
        DataError: the shape or a value is not usable.
    """
    x = _tensor(values, what)
    if x.dim() < 2 or x.shape[0] == 0 or 0 in x.shape:
        raise DataError(
            f"{what} must hold samples along its first axis and at least one value each, got shape {tuple(x.shape)}"
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
    """Bytes as float32 in [-1, 1], by a fixed rule that needs no client's statistics; other tensors unchanged."""
    return x.to(torch.float32).div_(127.5).sub_(1.0) if x.dtype == torch.uint8 else x


def labels(values: Any, what: str, samples: int) -> Tensor:
    """Check labels, one whole number from 0 on per sample, and convert them to int64.

    Args:
        values: an array, tensor or list; a single column is accepted too.
        what: the name of the argument, for messages.
        samples: how many labels there must be.
    """
    y = _tensor(values, what)
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dim() != 1:
        raise DataError(
            f"{what} must hold one label per sample, got shape {tuple(y.shape)}; turn one-hot rows into numbers"
        )
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
    """The number of classes: that of the names if there are any, else found in the training labels.

    Args:
        y_train: labels of the training part.
        y_test: labels of the test part.
        names: class names, if there are any.
    """
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


def _kind(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


@dataclass(frozen=True, eq=False)
class Owners:
    """Which client holds each training row, and which sector each client belongs to, for data that is already split.

    Args:
        rows: the client's number of each training row.
        clients: the clients' names by number.
        sectors: the sector's number of each client; None if the data has no sectors.
        sector_names: the sectors' names by number.
    """

    rows: Ints
    clients: tuple[str, ...]
    sectors: tuple[int, ...] | None = None
    sector_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, client: Names, sector: Names | None, samples: int) -> Owners:
        """Number the clients and sectors of data with a client's name, and perhaps a sector's, for each row.

        Args:
            client: a client's name for each row.
            sector: a sector's name for each row, or None.
            samples: the number of rows.

        Raises:
            DataError: a name is missing, or a client has rows in two sectors.
        """
        for what, given in (("client", client), ("sector", sector)):
            if given is None:
                continue
            count = 0 if getattr(given, "ndim", 1) == 0 else len(given)
            if count != samples:
                raise DataError(f"{what} has {count} entries for {samples} training samples; give one for each")
        names, rows = _numbered(client)
        if sector is None:
            return cls(rows, names)
        places, of_row = _numbered(sector)
        first = np.full(len(names), -1, dtype=np.int64)
        first[rows[::-1]] = of_row[::-1]
        astray = np.flatnonzero(of_row != first[rows])
        if len(astray):
            row = int(astray[0])
            raise DataError(
                f"client {names[rows[row]]!r} has rows in sector {places[first[rows[row]]]!r} and in "
                f"{places[of_row[row]]!r}; each client belongs to one sector, so name them apart"
            )
        return cls(rows, names, tuple(first.tolist()), places)

    def take(self, at: Ints) -> Owners:
        """The owners of these rows alone. Clients without a row among them stay in the list."""
        return replace(self, rows=self.rows[at])

    def indices(self) -> tuple[Ints, ...]:
        """The rows of each client."""
        order = np.argsort(self.rows, kind="stable")
        ends = np.cumsum(np.bincount(self.rows, minlength=len(self.clients)))[:-1]
        return tuple(np.split(order.astype(np.int64), ends))


def _numbered(given: Names) -> tuple[tuple[str, ...], Ints]:
    """The different names, site 2 before site 10, and the number of each entry's name."""
    words = np.array([_word(value) for value in given], dtype=object)
    names = sorted(set(words.tolist()), key=natural)
    numbers = {name: number for number, name in enumerate(names)}
    return tuple(names), np.array([numbers[word] for word in words], dtype=np.int64)


def _word(value: Any) -> str:
    if getattr(value, "ndim", 0):
        raise DataError(f"the name of a client or sector must be a word or a number, got the list {value.tolist()}")
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of numbers with a gap is read as floats
    return str(value)


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key that puts site 2 before site 10; the name itself decides between 1 and 01."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part], name
