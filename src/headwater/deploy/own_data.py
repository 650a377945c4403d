"""A client's own data, read in the same way as the data that `headwater deploy init` split.

`init` writes to federation.json how it read the data and which means, words and columns it found
(`headwater.data.reading`). A client reads its own file with `own_data` accordingly. Nothing is sent for this.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwater.data import PATHS, client_files, kind_of_path
from headwater.data.arrays import as_float, inputs, labels
from headwater.data.base import Examples
from headwater.data.files import read_npz
from headwater.data.loading import load
from headwater.data.preparation import Preparation
from headwater.data.reading import IMAGES, TABLE, TEXT, Reading
from headwater.data.table_columns import Columns, Encoded
from headwater.errors import ConfigError, DataError, nearest, said
from headwater.registry import load as load_object

if TYPE_CHECKING:
    from headwater.deploy.agreement import Agreement
    from headwater.deploy.folder import PartyFolder


def _reading_of(fields: dict[str, Any]) -> Reading:
    try:
        return Reading.of(fields)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"preparation in federation.json is not what `headwater deploy init` wrote ({said(error)}); bring "
            "that file back"
        ) from error


def own_data(folder: PartyFolder, say: client_files.Say = lambda sentence: None) -> Examples:
    """The rows that a client's party.toml names, as the model of the federation takes them.

    Args:
        folder: of a client.
        say: takes warnings about rows that are accepted but may be a mistake.

    Raises:
        DataError: if the data does not fit the federation; names row, column or file.
    """
    agreement, name = folder.federation, folder.data
    assert name is not None
    reading = _reading_of(agreement.preparation)
    read = {PATHS[0]: _arrays, PATHS[1]: _table, PATHS[2]: _images}.get(kind_of_path(name) or "")
    if read is not None:
        examples = read(name, agreement, reading, say)
    elif not Path(name).exists():
        examples = _function(name, agreement, reading)
    else:
        raise _wrong_kind(name, "a file of another kind", agreement, reading)
    _check(name, examples, agreement)
    return examples


def _table(name: str, agreement: Agreement, reading: Reading, say: client_files.Say) -> Examples:
    common: dict[str, Any] = {"label": reading.label, "test": reading.test, "classes": agreement.class_names}
    common["settled"] = reading.settled
    if reading.kind == TABLE:
        return client_files.table(Path(name), columns=reading.columns, worded=reading.worded, say=say, **common)
    if reading.kind == TEXT and agreement.words is not None:
        return client_files.texts(
            Path(name),
            text=reading.text,
            words=agreement.words,
            length=agreement.shape[0],
            tokenizer=reading.tokenizer,
            **common,
        )
    raise _wrong_kind(name, "a table", agreement, reading)


def _images(name: str, agreement: Agreement, reading: Reading, say: client_files.Say) -> Examples:
    if reading.kind != IMAGES:
        raise _wrong_kind(name, "a folder", agreement, reading)
    return client_files.images(Path(name), classes=agreement.class_names, shape=agreement.shape, resize=reading.resize)


def _arrays(name: str, agreement: Agreement, reading: Reading, say: client_files.Say) -> Examples:
    """x and y in the form that the model takes, which is how `init` writes them, or images as bytes."""
    arrays = read_npz(Path(name))
    keys = ("x", "y") if "x" in arrays else ("x_train", "y_train")
    if any(key not in arrays for key in keys):
        raise DataError(f"{name} holds {', '.join(arrays) or 'nothing'}; a client's file needs x and y")
    x, y = (arrays[key] for key in keys)
    if not x.ndim or not len(x):
        raise DataError(f"{name} has no rows; name a file that has some")
    tokens = agreement.words is not None
    examples = Examples(as_float(inputs(x, f"{name}: x", tokens=tokens)), labels(y, f"{name}: y", len(x)))
    names = [str(one) for one in arrays["class_names"]] if "class_names" in arrays else None
    return _renumbered(name, examples, names, agreement)


def _function(name: str, agreement: Agreement, reading: Reading) -> Examples:
    """The training set that a function returns. It is called with those keys of [data] that are its arguments."""
    function = load_object(name)
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        known = {}  # type: ignore[assignment]
    data = load(name, None, {key: value for key, value in agreement.config.data.options.items() if key in known})
    if data.tokens != (agreement.words is not None):
        kinds = ("values", "tokens") if data.tokens else ("tokens", "values")
        raise DataError(f"{name} gives {kinds[1]}, and this federation learns from {kinds[0]}; give these")
    own = data.preparation
    if (own.name if own else "") != reading.name:
        settled = f"what was settled for {reading.name!r}" if reading.name else "nothing that was settled"
        asks = f"asks for {own.name!r}" if own else "asks for none"
        raise DataError(
            f"{name} gives data whose preparation {asks}, and this federation has {settled}; give it the same, or "
            f"rows as the model takes them in a .npz file with x of shape {agreement.shape} and y"
        )
    examples = data.train if own is None else Examples(_prepared(name, data.train.x, own, reading), data.train.y)
    return _renumbered(name, examples, data.class_names, agreement)


def _prepared(name: str, x: Tensor, own: Preparation, reading: Reading) -> Tensor:
    if isinstance(own, Encoded):
        x, columns = _aligned(x, own.columns, reading.columns, reading.worded, name)
        own = Encoded(columns)
    try:
        return own.apply(x, reading.settled)
    except (ValueError, IndexError, RuntimeError) as error:
        raise DataError(
            f"{name}: what this federation settled does not fit its {tuple(x.shape)} inputs ({said(error)}); give "
            "the same columns as `headwater deploy init` saw"
        ) from error


def _aligned(
    x: Tensor, own: Columns, columns: Sequence[str], worded: Collection[str], name: str
) -> tuple[Tensor, Columns]:
    """Columns that a user's function has encoded, in the federation's order.

    Args:
        x: the encoded rows.
        own: the columns that the function has.
        columns: the federation's columns, in its order.
        worded: those that hold words.
        name: of the function, for messages.
    """
    for column in columns:
        if column not in own.names:
            raise DataError(
                f"{name} gives no column {column!r}, which this federation learns from; add it, or rename one of "
                f"{client_files.some(own.names)}{nearest(column, own.names)}"
            )
    at = [own.names.index(column) for column in columns]
    for column, number in zip(columns, at, strict=True):
        if (own.words[number] is not None) != (column in worded):
            holds = "words" if column in worded else "numbers"
            raise DataError(f"{name}: column {column!r} is to hold {holds}, as in this federation; give it so")
    return x[:, at], Columns(tuple(columns), tuple(own.words[number] for number in at))


def _renumbered(name: str, examples: Examples, names: Sequence[str] | None, agreement: Agreement) -> Examples:
    """Labels by the class numbers of the federation. Data without class names has these already."""
    known = agreement.class_names
    if names is None or tuple(names) == known or all(one == str(at) for at, one in enumerate(names)):
        return examples
    if int(examples.y.max()) >= len(names):
        raise DataError(f"{name} has the label {int(examples.y.max())} and {len(names)} class names; name every class")
    for number in sorted(set(examples.y.tolist())):
        if names[number] not in known:
            raise DataError(
                f"{name} has samples of {names[number]!r}, which is no class of this federation "
                f"({client_files.some(known)}); rename it, leave them out, or {client_files.ANEW}"
            )
    places = torch.tensor([known.index(one) if one in known else -1 for one in names])
    return Examples(examples.x, places[examples.y])


def _check(name: str, examples: Examples, agreement: Agreement) -> None:
    shape, wanted = tuple(examples.x.shape[1:]), tuple(agreement.shape)
    if shape != wanted:
        raise DataError(
            f"{name} has {_inputs(shape, agreement)}, and this federation learns from {_inputs(wanted, agreement)}; "
            "bring them to that form"
        )
    if not 0 <= int(examples.y.min()) <= int(examples.y.max()) < agreement.classes:
        raise DataError(
            f"{name} has labels from {int(examples.y.min())} to {int(examples.y.max())}, and this federation knows the "
            f"classes 0 to {agreement.classes - 1}; correct them or leave those rows out"
        )
    if agreement.words is not None and not 0 <= int(examples.x.min()) <= int(examples.x.max()) < agreement.words:
        raise DataError(
            f"{name} has token numbers from {int(examples.x.min())} to {int(examples.x.max())}, and this federation "
            f"knows 0 to {agreement.words - 1}; make them with the same vocabulary"
        )


def _inputs(shape: tuple[int, ...], agreement: Agreement) -> str:
    if len(shape) == 3:
        channels = "1 channel" if shape[0] == 1 else f"{shape[0]} channels"
        return f"images of {shape[2]} x {shape[1]} px with {channels}"
    return f"{'tokens' if agreement.words is not None else 'inputs'} of shape {shape}"


def _wrong_kind(name: str, what: str, agreement: Agreement, reading: Reading) -> DataError:
    """The error for data of another kind than the federation's."""
    columns = client_files.some((*reading.columns, reading.label))
    own = {
        TABLE: f"a .csv, .tsv or .parquet file with the columns {columns}, or ",
        TEXT: f"a .csv, .tsv or .parquet file with the columns {reading.text!r} and {reading.label!r}, or ",
        IMAGES: "a folder of images as class/file, or ",
    }.get(reading.kind, "")
    return DataError(
        f"{name} is {what}, and this federation learns from others; name {own}a .npz file with x (each "
        f"{tuple(agreement.shape)}, as the model takes it) and y"
    )
