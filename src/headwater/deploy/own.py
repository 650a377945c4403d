"""A client's own data, read and checked where it is, as the rows were that `init` saw.

`describe` says in federation.json how those were read and what was settled for them; `own_data` follows it. Nothing is
sent for this.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwater.data import DATASETS, PATHS, alike, kind_of_path
from headwater.data.arrays import as_float, inputs, labels
from headwater.data.base import Examples
from headwater.data.encoding import Encoded
from headwater.data.loading import load
from headwater.data.preparation import Arrays, Preparation, tell, untell
from headwater.data.store import read_npz
from headwater.errors import ConfigError, DataError, said
from headwater.registry import load as load_object

if TYPE_CHECKING:
    from headwater.deploy.folder import Federated, PartyFolder
    from headwater.training.experiment import Experiment

TABLE, TEXT, IMAGES, ARRAYS = "table", "text", "images", "arrays"
LOOK = 256  # samples that tell whether inputs were bytes


def describe(made: Experiment) -> dict[str, Any]:
    """How a client reads a file of its own; empty if there is nothing to say but the shape of arrays."""
    data, split, exchange = made.config.data, made.split, made.exchange
    options, kind = data.options, kind_of_path(data.name)
    way = None if exchange is None else exchange.way
    told: dict[str, Any] = {}
    if isinstance(way, Encoded):
        names = way.columns.names
        worded = [names[at] for at in way.columns.worded]
        told = {"kind": TABLE, "label": data.label, "columns": list(names), "worded": worded}
    elif split.words is not None and (data.name in DATASETS or (kind in PATHS[1:] and options.get("text"))):
        told = {"kind": TEXT, "label": data.label, "text": options.get("text") or "text"}
    elif exchange is None and _were_bytes(split.train.x):
        told = {"kind": IMAGES, "resize": bool(kind == PATHS[2] and options.get("pixels"))}
    elif exchange is not None:
        told = {"kind": ARRAYS}
    test = options.get("test") if told.get("label") and kind is not None else None
    if test and not Path(test).is_file():
        told["test"] = test  # a column
    if exchange is not None:
        told |= {"name": exchange.name, "settled": tell(exchange.settled)}
    return told


@dataclass(frozen=True)
class _Way:
    """What `describe` told."""

    kind: str = ARRAYS
    label: str = ""
    columns: tuple[str, ...] = ()
    worded: tuple[str, ...] = ()
    text: str = ""
    test: str = ""
    resize: bool = False
    name: str = ""  # of the exchange
    settled: Arrays = ()

    @staticmethod
    def of(told: dict[str, Any]) -> _Way:
        try:
            known: dict[str, Any] = told | {key: tuple(told.get(key, ())) for key in ("columns", "worded")}
            return _Way(**known | {"settled": untell(told.get("settled", ()))})
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"preparation in federation.json is not what `headwater deploy init` wrote ({said(error)}); bring "
                "that file back"
            ) from error


def own_data(folder: PartyFolder, say: alike.Say = lambda sentence: None) -> Examples:
    """The rows that the client's party.toml names, as the federation's model takes them, or a sentence. `say` is told
    what is not wrong, but perhaps not meant."""
    described, name = folder.federation, folder.data
    assert name is not None
    way = _Way.of(described.preparation)
    read = {PATHS[0]: _arrays, PATHS[1]: _table, PATHS[2]: _images}.get(kind_of_path(name) or "")
    if read is not None:
        found = read(name, described, way, say)
    elif not Path(name).exists():
        found = _function(name, described, way)
    else:
        raise _other(name, "a file of another kind", described, way)
    _check(name, found, described)
    return found


def _table(name: str, described: Federated, way: _Way, say: alike.Say) -> Examples:
    common: dict[str, Any] = {"label": way.label, "test": way.test, "classes": described.class_names}
    common["settled"] = way.settled
    if way.kind == TABLE:
        return alike.table(Path(name), columns=way.columns, worded=way.worded, say=say, **common)
    if way.kind == TEXT and described.words is not None:
        return alike.texts(Path(name), text=way.text, words=described.words, length=described.shape[0], **common)
    raise _other(name, "a table", described, way)


def _images(name: str, described: Federated, way: _Way, say: alike.Say) -> Examples:
    if way.kind != IMAGES:
        raise _other(name, "a folder", described, way)
    return alike.images(Path(name), classes=described.class_names, shape=described.shape, resize=way.resize)


def _arrays(name: str, described: Federated, way: _Way, say: alike.Say) -> Examples:
    """x and y as the model takes them, which is how `init` writes them, or images as bytes."""
    held = read_npz(Path(name))
    keys = ("x", "y") if "x" in held else ("x_train", "y_train")
    if any(key not in held for key in keys):
        raise DataError(f"{name} holds {', '.join(held) or 'nothing'}; a client's file needs x and y")
    x, y = (held[key] for key in keys)
    if not x.ndim or not len(x):
        raise DataError(f"{name} has no rows; name a file that has some")
    tokens = described.words is not None
    made = Examples(as_float(inputs(x, f"{name}: x", tokens=tokens)), labels(y, f"{name}: y", len(x)))
    names = [str(one) for one in held["class_names"]] if "class_names" in held else None
    return _numbered(name, made, names, described)


def _function(name: str, described: Federated, way: _Way) -> Examples:
    """The training part of what a function gives; it is called with those keys of [data] that are its arguments."""
    function = load_object(name)
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        known = {}  # type: ignore[assignment]
    made = load(name, None, {key: value for key, value in described.config.data.options.items() if key in known})
    if made.tokens != (described.words is not None):
        kinds = ("values", "tokens") if made.tokens else ("tokens", "values")
        raise DataError(f"{name} gives {kinds[1]}, and this federation learns from {kinds[0]}; give these")
    own = made.preparation
    if (own.name if own else "") != way.name:
        settled = f"what was settled for {way.name!r}" if way.name else "nothing that was settled"
        asks = f"asks for {own.name!r}" if own else "asks for none"
        raise DataError(
            f"{name} gives data whose preparation {asks}, and this federation has {settled}; give it the same, or "
            f"rows as the model takes them in a .npz file with x of shape {described.shape} and y"
        )
    found = made.train if own is None else Examples(_prepared(name, made.train.x, own, way), made.train.y)
    return _numbered(name, found, made.class_names, described)


def _prepared(name: str, x: Tensor, own: Preparation, way: _Way) -> Tensor:
    if isinstance(own, Encoded):
        x, columns = alike.aligned(x, own.columns, way.columns, way.worded, name)
        own = Encoded(columns)
    try:
        return own.apply(x, way.settled)
    except (ValueError, IndexError, RuntimeError) as error:
        raise DataError(
            f"{name}: what this federation settled does not fit its {tuple(x.shape)} inputs ({said(error)}); give "
            "the same columns as `headwater deploy init` saw"
        ) from error


def _numbered(name: str, found: Examples, names: Sequence[str] | None, described: Federated) -> Examples:
    """Labels by the federation's numbers, where the data names its classes; numbers alone are those already."""
    known = described.class_names
    if names is None or tuple(names) == known or all(one == str(at) for at, one in enumerate(names)):
        return found
    if int(found.y.max()) >= len(names):
        raise DataError(f"{name} has the label {int(found.y.max())} and {len(names)} class names; name every class")
    for number in sorted(set(found.y.tolist())):
        if names[number] not in known:
            raise DataError(
                f"{name} has samples of {names[number]!r}, which is no class of this federation ({alike.some(known)}); "
                f"rename it, leave them out, or {alike.ANEW}"
            )
    places = torch.tensor([known.index(one) if one in known else -1 for one in names])
    return Examples(found.x, places[found.y])


def _check(name: str, found: Examples, described: Federated) -> None:
    shape, wanted = tuple(found.x.shape[1:]), tuple(described.shape)
    if shape != wanted:
        raise DataError(
            f"{name} has {_inputs(shape, described)}, and this federation learns from {_inputs(wanted, described)}; "
            "bring them to that form"
        )
    if not 0 <= int(found.y.min()) <= int(found.y.max()) < described.classes:
        raise DataError(
            f"{name} has labels from {int(found.y.min())} to {int(found.y.max())}, and this federation knows the "
            f"classes 0 to {described.classes - 1}; correct them or leave those rows out"
        )
    if described.words is not None and not 0 <= int(found.x.min()) <= int(found.x.max()) < described.words:
        raise DataError(
            f"{name} has token numbers from {int(found.x.min())} to {int(found.x.max())}, and this federation knows 0 "
            f"to {described.words - 1}; make them with the same vocabulary"
        )


def _inputs(shape: tuple[int, ...], described: Federated) -> str:
    if len(shape) == 3:
        channels = "1 channel" if shape[0] == 1 else f"{shape[0]} channels"
        return f"images of {shape[2]} x {shape[1]} px with {channels}"
    return f"{'tokens' if described.words is not None else 'inputs'} of shape {shape}"


def _other(name: str, what: str, described: Federated, way: _Way) -> DataError:
    """The sentence for data of another kind than the federation's."""
    own = {
        TABLE: f"a .csv, .tsv or .parquet file with the columns {alike.some((*way.columns, way.label))}, or ",
        TEXT: f"a .csv, .tsv or .parquet file with the columns {way.text!r} and {way.label!r}, or ",
        IMAGES: "a folder of images as class/file, or ",
    }.get(way.kind, "")
    return DataError(
        f"{name} is {what}, and this federation learns from others; name {own}a .npz file with x (each "
        f"{tuple(described.shape)}, as the model takes it) and y"
    )


def _were_bytes(x: Tensor) -> bool:
    """Whether inputs are images that were bytes, so that image files mean the same."""
    if x.dim() != 4 or x.shape[1] not in (1, 3) or x.dtype != torch.float32:
        return False
    first = x[:LOOK]
    if not bool((first.abs() <= 1).all()):
        return False
    return as_float(((first + 1) * 127.5).round().to(torch.uint8)).equal(first)
