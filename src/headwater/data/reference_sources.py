"""Reference sets that are not held out of the data: noise, a generator, another data set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.rng import derive, stream
from headwater.data import DATASETS, GENERATOR, NOISE, Reference, kind_of_path
from headwater.data.arrays import as_float, inputs, labels
from headwater.data.base import Data, Examples
from headwater.data.loading import load, options_for
from headwater.data.synthetic import generate
from headwater.data.table_columns import Encoded
from headwater.errors import ConfigError, DataError
from headwater.registry import load as load_object

Ints = np.ndarray[Any, np.dtype[np.int64]]
# Inputs, labels where these number the classes of the clients' data, and labels where they number the source's own.
Found = tuple[Tensor, Tensor | None, Tensor | None]
ARGUMENTS = ("count", "shape", "classes", "seed")


def outside(
    data: Data,
    public: Examples,
    wanted: Reference,
    limit: int,
    data_dir: Path | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Found:
    """Inputs, and perhaps labels of both kinds, of a reference set that is not held out of the data.

    Args:
        data: the clients' data.
        public: the validation set, which gives the range of values for noise and the generator.
        wanted: options of the reference set.
        limit: the largest number of inputs.
        data_dir: the data directory, for a source that is a listed set.
        seed: of all draws.
        options: the options that the clients' data was read with.
    """
    if wanted.source == NOISE:
        return _noise(data, public, wanted.noise, limit, seed), None, None
    if wanted.source == GENERATOR:
        if data.tokens:
            raise DataError(
                f"data.reference = 'generator' draws values, but {data.name!r} holds tokens; use 'noise' or 'holdout'"
            )
        low, high = _range(data, public)
        drawn = generate(limit, data.shape, data.classes, derive(seed, "data", "generator"))
        return (
            torch.from_numpy((low + (drawn.numpy() + 1) / 2 * (np.asarray(high) - low)).astype(np.float32)),
            None,
            None,
        )
    function = _generator(wanted.source)
    if function is not None:
        wanted.check_drawn()
        return _generated(data, function, wanted, limit, derive(seed, "data", "generator") % 2**31)
    return _foreign(data, wanted, limit, data_dir, seed, options or {})


def narrow(rows: Ints, y: Ints, wanted: Reference, classes: int, seed: int) -> Ints:
    """The rows of the chosen classes, and of these a random share; a smaller share is a subset of a larger one.

    Args:
        rows: row numbers to choose from; returned unchanged if nothing is to be left out.
        y: the labels of all rows of the source.
        wanted: options of the reference set.
        classes: the number of classes of the source.
        seed: of the draws.
    """
    if not wanted.narrowed or not len(rows):
        return rows
    if wanted.classes != ():
        chosen = _chosen(wanted, classes, seed)
        rows = rows[np.isin(y[rows], chosen)]
        if not len(rows):
            raise DataError(
                f"data.reference {wanted.source!r} has no sample of the classes {sorted(chosen)}; "
                "name others in data.reference_classes"
            )
    share = max(1, round(wanted.fraction * len(rows)))
    return stream(seed, "data", "fraction").permutation(rows)[:share]


def _chosen(wanted: Reference, classes: int, seed: int) -> list[int]:
    if isinstance(wanted.classes, int):
        if wanted.classes > classes:
            raise ConfigError(
                f"data.reference_classes asks for {wanted.classes} classes, but {wanted.source!r} has {classes}; "
                f"use at most {classes}"
            )
        drawn: list[int] = stream(seed, "data", "classes").permutation(classes)[: wanted.classes].tolist()
        return drawn
    for number in wanted.classes:
        if number >= classes:
            raise ConfigError(
                f"data.reference_classes names class {number}, but {wanted.source!r} has {classes} classes; "
                f"use 0 to {classes - 1}"
            )
    return list(wanted.classes)


def _noise(data: Data, public: Examples, how: str, size: int, seed: int) -> Tensor:
    """Noise in the range of the inputs: uniform, or normal and scaled to the range as a whole."""
    rng = stream(seed, "data", "noise")
    shape = (size, *data.shape)
    if data.tokens:
        if how != "uniform":
            raise DataError(
                f"data.reference_noise = {how!r} draws values, but {data.name!r} holds tokens; use 'uniform'"
            )
        top = int(public.x.max()) if len(public.x) else 1
        return torch.from_numpy(rng.integers(0, top + 1, shape))
    low, high = _range(data, public)
    if how == "uniform":
        return torch.from_numpy(rng.uniform(low, high, shape).astype(np.float32))
    drawn = rng.normal(size=shape)
    if drawn.size:
        drawn = (drawn - drawn.min()) / max(float(np.ptp(drawn)), np.finfo(float).tiny)
    return torch.from_numpy((low + drawn * (np.asarray(high) - low)).astype(np.float32))


def _range(data: Data, public: Examples) -> tuple[Any, Any]:
    """Smallest and largest value of the public validation inputs; -1 and 1 if there are none.

    By column for flat features; over all values for images, whose pixels share one scale.
    """
    x = public.x
    if not len(x):
        return -1.0, 1.0
    if len(data.shape) == 1:
        values = x.numpy()
        known = ~np.isnan(values)
        low, high = (np.where(known, values, far) for far in (np.inf, -np.inf))
        some = known.any(0)  # the range of a column without values is not known
        return np.where(some, low.min(0), 0.0), np.where(some, high.max(0), 0.0)
    return float(x.min()), float(x.max())


def _generator(name: str) -> Callable[..., Any] | None:
    """The user's function of this name, if its arguments are those of a generator; None if it loads a data set."""
    if ":" not in name or name in DATASETS or kind_of_path(name) is not None or Path(name).exists():
        return None
    function = load_object(name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # no signature: it is called as a function that loads a data set
    if set(ARGUMENTS) <= set(signature.parameters) and _takes(signature, **dict.fromkeys(ARGUMENTS)):
        return function  # type: ignore[no-any-return]
    if _takes(signature):
        return None
    raise ConfigError(
        f"data.reference {name!r} has the arguments {signature}; it must be a function without arguments that returns "
        f"hw.Data, or one of ({', '.join(ARGUMENTS)}) that returns inputs, or inputs and labels"
    )


def _takes(signature: inspect.Signature, **arguments: Any) -> bool:
    try:
        signature.bind(**arguments)
    except TypeError:
        return False
    return True


def _generated(data: Data, function: Callable[..., Any], wanted: Reference, size: int, seed: int) -> Found:
    what = f"what {wanted.source!r} made"
    nothing = data.take([])
    if not size:
        return nothing.x, nothing.y if wanted.labelled else None, None
    # torch's global generator is seeded for the user's function and restored afterwards.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        output = function(count=size, shape=data.shape, classes=data.classes, seed=seed)
    x, y = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
    x = as_float(inputs(x, what, tokens=data.tokens))
    if tuple(x.shape) != (size, *data.shape):
        raise DataError(
            f"{what} has shape {tuple(x.shape)}, but {size} inputs of shape {data.shape} were asked for; "
            "return exactly count of them"
        )
    if y is None and wanted.labelled:
        raise DataError(f"data.reference_labelled = true, but {wanted.source!r} returns inputs only; remove it")
    return x, None if y is None else _known(labels(y, f"{what}, as labels,", size), data, what), None


def _foreign(
    data: Data, wanted: Reference, size: int, data_dir: Path | None, seed: int, options: Mapping[str, Any]
) -> Found:
    name = wanted.source
    if name == data.name:
        raise ConfigError(
            f"data.reference is {name!r}, the very data that the clients hold; use 'holdout' to set a part of it aside"
        )
    other = load(name, data_dir, options_for(name, options))
    if not _same_columns(data, other):
        raise DataError(
            f"reference set {name!r} has other columns or words than {data.name!r}, so its values would mean something "
            "else; give it the same ones, or use 'holdout' or 'noise'"
        )
    if other.shape != data.shape or other.tokens != data.tokens:
        raise DataError(
            f"reference set {name!r} has inputs of shape {other.shape}, but {data.name!r} has {data.shape}; "
            "they must be alike, so choose another set, 'holdout' or 'noise'"
        )
    rows = narrow(np.arange(len(other)), other.labels.numpy(), wanted, other.classes, seed)[:size]
    chosen = other.take(np.sort(rows))
    alike = _known(chosen.y, data, f"reference set {name!r}") if wanted.labelled else None
    return chosen.x, alike, None if name in DATASETS and DATASETS[name].info.unlabelled else chosen.y


def _same_columns(one: Data, other: Data) -> bool:
    """Whether the preparation of one set can be applied to the other: both have none, or the same columns."""
    ways = (one.preparation, other.preparation)
    if ways == (None, None):
        return True
    return all(isinstance(way, Encoded) for way in ways) and ways[0].columns == ways[1].columns  # type: ignore[union-attr]


def _known(y: Tensor, data: Data, what: str) -> Tensor:
    if len(y) and int(y.max()) >= data.classes:
        raise DataError(
            f"{what} has the label {int(y.max())}, but {data.name!r} has {data.classes} classes, 0 to "
            f"{data.classes - 1}; number them alike"
        )
    return y
