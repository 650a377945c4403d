"""Data that a Python program has in memory, in the forms that users have it: arrays, DataFrames, torch data sets."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from headwater.data.base import Array, Data, fifth_of
from headwater.data.table_columns import Columns, Encoded
from headwater.data.tables import Sheet, TableOptions, assemble
from headwater.errors import DataError

FORMS = (
    "the name of a data set, a path, hw.Data, (X, y), (X_train, y_train, X_test, y_test), a DataFrame with label=…, "
    "a torch data set, or a Hugging Face data set"
)
SCALED, FAR = 1000, 10.0  # rows that are looked at, and a mean or deviation that slows training down
ROLES = tuple(field.name for field in fields(TableOptions))  # settings that say which column of a table is what


def data_from(source: Any, settings: dict[str, Any], standardize: bool | str = "auto") -> Data:
    """`Data` from an object in memory.

    Args:
        source: arrays (X, y) or (X_train, y_train, X_test, y_test), a DataFrame, a torch or a Hugging Face data set.
            Without a test part, a fixed fifth is for tests.
        settings: keyword arguments of `run`; those that name columns of a table are taken out of it.
        standardize: whether columns of numbers get mean 0 and deviation 1 over all clients. "auto" does it for rows of
            numbers (two-dimensional floats), not for images and token numbers.

    Raises:
        DataError: it is in none of these forms, or the arrays do not fit together.
    """
    if isinstance(source, Data):
        _check_scale(source, standardize)
        return source
    if type(source).__name__ == "DataFrame":
        _refuse_unscaled(standardize)
        if not len(source):
            raise DataError("the DataFrame has no rows; give one that has some")
        frame = source.reset_index(drop=True).rename(columns=str)
        return assemble([Sheet(frame)], "the DataFrame", _roles(settings))
    if hasattr(source, "to_pandas") and hasattr(source, "features"):
        return _hugging_face(source, settings, standardize)
    if isinstance(source, tuple | list) and len(source) in (2, 4):
        return _arrays([_array(part) for part in source], standardize)
    if isinstance(source, torch.utils.data.Dataset) and hasattr(source, "__len__"):
        return _arrays(_stacked(source), standardize)
    raise DataError(f"data is of type {type(source).__name__}; it can be {FORMS}")


def _check_scale(data: Data, standardize: bool | str) -> None:
    """`Data` is used as it is; say so where that is not what was asked for, or likely to harm training."""
    if standardize is True:
        raise DataError(
            "standardize=True has no effect on hw.Data, which is used as it is; give the arrays themselves: "
            "data=(X_train, y_train, X_test, y_test)"
        )
    if standardize is False or data.preparation is not None or data.tokens or len(data.shape) != 1:
        return
    some = data.take(np.arange(min(len(data), SCALED))).x
    center, spread = float(some.mean(0).abs().max()), float(some.std(0).max())
    if max(center, spread) > FAR:
        warnings.warn(
            f"hw.Data is used as it is, and it has columns with means up to {center:.3g} and deviations up to "
            f"{spread:.3g}; data=(X_train, y_train, X_test, y_test) scales columns over all clients, and "
            "standardize=False accepts them as they are",
            stacklevel=2,
        )


def _refuse_unscaled(standardize: bool | str) -> None:
    if standardize is False:
        raise DataError(
            "standardize=False is for arrays, and columns of a table are always standardised; give data=(X, y) instead"
        )


def _roles(settings: dict[str, Any]) -> TableOptions:
    named = {name: settings.pop(name) for name in ROLES if name in settings}
    if "label" in named:
        named["label"] = str(named["label"])  # a DataFrame made of an array has numbers as column names
    return TableOptions(**named)


def _array(part: Any) -> Array:
    if isinstance(part, torch.Tensor):
        return part.detach().cpu().numpy()
    if type(part).__module__.partition(".")[0] == "pandas":
        return np.asarray(part.to_numpy())
    try:
        return np.asarray(part)
    except ValueError as error:
        raise DataError(f"the arrays are not regular ({error}); every sample needs the same shape") from error


def _stacked(source: Any) -> list[Array]:
    """Inputs and labels of a torch data set, whose items are (x, y)."""
    if not len(source):
        raise DataError("the data set has no samples")
    first = _item(source, 0)
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise DataError(f"an item of the data set is a {type(first).__name__}; it must be a pair of input and label")
    items = [_item(source, at) for at in range(len(source))]
    try:
        return [np.stack([_array(x) for x, _ in items]), np.array([_array(y).item() for _, y in items])]
    except ValueError as error:
        raise DataError(f"the inputs of the data set differ in shape ({error}); bring them to one shape") from error


def _item(source: Any, at: int) -> Any:
    try:
        return source[at]
    except Exception as error:  # the user's own code may raise anything
        raise DataError(f"sample {at} of the data set could not be read ({type(error).__name__}: {error})") from error


def _hugging_face(source: Any, settings: dict[str, Any], standardize: bool | str) -> Data:
    label = settings.get("label", "label")
    images = [name for name, kind in source.features.items() if type(kind).__name__ == "Image"]
    if label not in source.features:
        raise DataError(
            f"the data set has no column {label!r}; name the column of labels with label=… "
            f"(columns: {', '.join(source.features)})"
        )
    names = getattr(source.features[label], "names", None)  # of a ClassLabel
    y = np.asarray(source[label])
    y = np.array(names)[y] if names and y.dtype.kind in "iu" else y
    if images:
        settings.pop("label", None)
        pixels = [np.asarray(picture) for picture in source[images[0]]]
        try:
            return _arrays([np.stack(pixels), y], standardize)
        except ValueError as error:
            raise DataError("the images of the data set differ in size; resize them to one size") from error
    _refuse_unscaled(standardize)
    frame = source.to_pandas()
    frame[label] = y
    return assemble([Sheet(frame)], "the data set", _roles(settings))


def _arrays(parts: list[Array], standardize: bool | str) -> Data:
    for what, part in zip(("X", "y", "X_test", "y_test"), parts, strict=False):
        if part.ndim < 1:
            raise DataError(f"{what} is {part.item()!r}; it must be an array with one entry per sample")
    numbers, names = _numbered(parts[1::2])
    inputs = parts[0::2]
    if len(parts) == 2:
        for_tests = fifth_of(inputs[0], numbers[0], "data")
        inputs = [inputs[0][~for_tests], inputs[0][for_tests]]
        numbers = [numbers[0][~for_tests], numbers[0][for_tests]]
    x, x_test = inputs
    rows = x.ndim == 2 and x.dtype.kind in "fiu" and x.dtype != np.uint8
    about: dict[str, Any] = {"class_names": names}
    if standardize is True and not rows:
        raise DataError(f"standardize=True is for rows of numbers, and the data has inputs of shape {x.shape[1:]}")
    for what, part in (("X", x), ("X_test", x_test)) if rows else ():
        if part.dtype.kind == "f" and part.ndim == 2 and (empty := np.isnan(part).any(1)).any():
            raise DataError(
                f"{what} holds NaN in {int(empty.sum())} of {len(part)} samples; replace these values, leave the "
                "samples out, or give a DataFrame, in which empty cells count as missing values"
            )
    if rows and standardize is not False:
        about["preparation"] = Encoded(Columns(tuple(f"x{at}" for at in range(x.shape[1])), (None,) * x.shape[1]))
    return Data(x, numbers[0], x_test, numbers[1], **about)


def _numbered(labels: list[Array]) -> tuple[list[Array], list[str] | None]:
    """Labels as class numbers, and the names of the classes if labels are words or have gaps."""
    joined = np.concatenate([part.reshape(-1) if part.ndim == 2 and part.shape[1] == 1 else part for part in labels])
    if joined.ndim != 1:
        return labels, None  # `Data` says what is wrong
    if joined.dtype.kind not in "OUSbiuf":
        raise DataError(f"the labels are of dtype {joined.dtype}; use numbers or words, one per class")
    known = np.unique(joined.astype(str) if joined.dtype.kind in "OUSb" else joined)
    if joined.dtype.kind not in "OUSb" and np.array_equal(known, np.arange(len(known))):
        return labels, None
    if joined.dtype.kind == "f" and not np.array_equal(known, np.round(known)):
        return labels, None
    shown = [str(label) if joined.dtype.kind != "f" else str(int(label)) for label in known]
    as_known = [part.reshape(-1).astype(known.dtype) for part in labels]
    if len(labels) == 2 and len(new := np.setdiff1d(as_known[1], as_known[0])):
        raise DataError(f"y_test holds the label {str(new[0])!r}, which y_train does not have; leave such samples out")
    return [np.searchsorted(known, part) for part in as_known], shown
