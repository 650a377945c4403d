"""Data as everything else meets it: examples, a set with its test part, and the split that a run works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.data import DATASETS
from headwater.data.arrays import as_float, count_classes, inputs, labels
from headwater.errors import ConfigError, DataError, nearest
from headwater.registry import load as load_object
from headwater.rng import stream

Indices = Sequence[int] | np.ndarray[Any, np.dtype[np.int64]] | Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and their labels."""

    x: Tensor  # float32, or int64 for tokens
    y: Tensor  # int64

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Indices) -> Examples:
        """The examples at these positions, in this order."""
        at = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return Examples(self.x[at], self.y[at])


class Data:
    """A labelled set with a test part, from arrays or tensors.

    Images as bytes (n, h, w), (n, h, w, c) or (n, c, h, w) become float32 in [-1, 1] with the channel first; floats
    are taken as they are; whole numbers become floats unless `tokens=True`. Labels are 0 … classes - 1, and with
    `class_names` a class may be without samples.

    >>> Data([[0.0], [1.0]], [0, 1], [[0.5]], [1]).classes
    2
    """

    def __init__(
        self,
        x_train: Any,
        y_train: Any,
        x_test: Any,
        y_test: Any,
        *,
        name: str = "arrays",
        class_names: Sequence[str] | None = None,
        tokens: bool = False,
    ) -> None:
        # Bytes are kept as bytes: a run that uses a tenth of a set then pays for floats of a tenth.
        self._x, self._x_test = inputs(x_train, "x_train", tokens=tokens), inputs(x_test, "x_test", tokens=tokens)
        self._y = labels(y_train, "y_train", len(self._x))
        self._y_test = labels(y_test, "y_test", len(self._x_test))
        if self._x.shape[1:] != self._x_test.shape[1:]:
            shapes = tuple(self._x.shape[1:]), tuple(self._x_test.shape[1:])
            raise DataError(f"training inputs have shape {shapes[0]} and test inputs {shapes[1]}; give both alike")
        if self._x.dtype != self._x_test.dtype:
            raise DataError("x_train and x_test differ in kind: one holds bytes, the other does not; give both alike")
        names = None if class_names is None else tuple(str(label) for label in class_names)
        self.name = name
        self.classes = count_classes(self._y, self._y_test, names)
        self.class_names = names or tuple(str(label) for label in range(self.classes))
        self.shape: tuple[int, ...] = tuple(self._x.shape[1:])

    @cached_property
    def train(self) -> Examples:
        return Examples(as_float(self._x), self._y)

    @cached_property
    def test(self) -> Examples:
        return Examples(as_float(self._x_test), self._y_test)

    @property
    def tokens(self) -> bool:
        """Whether the inputs are token numbers rather than values."""
        return self._x.dtype == torch.int64

    def __len__(self) -> int:
        """The number of training samples."""
        return len(self._y)

    def take(self, indices: Indices) -> Examples:
        """Training examples at these positions; only these are turned into floats."""
        at = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return Examples(as_float(self._x[at]), self._y[at])

    def __repr__(self) -> str:
        return f"Data({self.name!r}, {len(self)} + {len(self._y_test)} samples of {self.shape}, {self.classes} classes)"


def load(name: str, data_dir: Path | None = None) -> Data:
    """A listed data set, a .npz file, or what "package.module:function" returns."""
    if name in DATASETS:
        loader = DATASETS[name].load()
        made = loader(data_dir)
    elif name.endswith(".npz"):
        from headwater.data.files import npz

        made = npz(Path(name))
    elif ":" in name and not Path(name).exists():
        function = load_object(name)
        if not callable(function):
            raise ConfigError(f"{name!r} is not callable; it must be a function without arguments that returns hw.Data")
        made = function()
    else:
        raise ConfigError(
            f"there is no data set called {name!r}{nearest(name, DATASETS)} (known: {', '.join(DATASETS)}; "
            "or the path of a .npz file, or 'package.module:function')"
        )
    if not isinstance(made, Data):
        raise DataError(
            f"{name!r} gave a {type(made).__name__}; it must return hw.Data(x_train, y_train, x_test, y_test)"
        )
    return made


@dataclass(frozen=True, eq=False)
class Split:
    """What a run works on: `train` is the clients', `validation` and `reference` are public, `test` is for scores."""

    train: Examples
    validation: Examples
    reference: Tensor  # inputs without labels
    test: Examples
    classes: int
    shape: tuple[int, ...]
    name: str


def carve(
    data: Data,
    *,
    fraction: float = 1.0,
    validation: float = 0.1,
    reference: str = "holdout",
    reference_size: int = 5000,
    data_dir: Path | None = None,
    seed: int = 0,
) -> Split:
    """The public parts and what is left for the clients: a function of the data and the seed alone.

    A share `fraction` of the training set is drawn; out of that come first the validation set (a share below 1, or a
    count) and then, with `reference = "holdout"`, the reference set. A reference set is never larger than
    `reference_size` nor than a fifth of the drawn training set, wherever it comes from.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"data.fraction must be above 0 and at most 1, got {fraction}; 1 uses the whole training set")
    if reference_size < 0:
        raise ConfigError(f"data.reference_size must be 0 or more, got {reference_size}; 0 means no reference set")
    drawn = max(1, round(fraction * len(data)))
    order = stream(seed, "data", "order").permutation(len(data))[:drawn]
    held = _validation_size(validation, drawn)
    limit = min(reference_size, drawn // 5)
    out = limit if reference == "holdout" else 0
    if held + out >= drawn:
        raise DataError(
            f"the validation set ({held}) and the reference set ({out}) leave nothing of the {drawn} training samples "
            "for the clients; lower data.validation or data.reference_size, or raise data.fraction"
        )
    pieces = [np.sort(piece) for piece in np.split(order, [held, held + out])]
    public = data.take(pieces[0])
    if reference == "holdout":
        inputs_only = data.take(pieces[1]).x
    elif reference == "noise":
        inputs_only = _noise(data, public, limit, seed)
    else:
        inputs_only = _foreign(data, reference, limit, data_dir)
    return Split(data.take(pieces[2]), public, inputs_only, data.test, data.classes, data.shape, data.name)


def _validation_size(wanted: float, drawn: int) -> int:
    if not wanted >= 0 or (wanted >= 1 and wanted != int(wanted)):
        raise ConfigError(
            f"data.validation must be a share from 0 up to 1 or a whole number of samples, got {wanted}; "
            "0.1 keeps a tenth, 500 keeps 500 samples"
        )
    return int(wanted) if wanted >= 1 else round(wanted * drawn)


def _noise(data: Data, public: Examples, size: int, seed: int) -> Tensor:
    """Uniform in the range of the public validation inputs (of -1 to 1 if there are none): by column for flat
    features, over all for images, whose pixels share one scale."""
    rng = stream(seed, "data", "noise")
    x = public.x
    flat = len(data.shape) == 1
    if data.tokens:
        top = int(x.max()) if len(x) else 1
        return torch.from_numpy(rng.integers(0, top + 1, (size, *data.shape)))
    low: Any = -1.0
    high: Any = 1.0
    if len(x):
        low, high = (x.amin(0).numpy(), x.amax(0).numpy()) if flat else (float(x.min()), float(x.max()))
    return torch.from_numpy(rng.uniform(low, high, (size, *data.shape)).astype(np.float32))


def _foreign(data: Data, name: str, size: int, data_dir: Path | None) -> Tensor:
    if name == data.name:
        raise ConfigError(
            f"data.reference is {name!r}, the very data that the clients hold; use 'holdout' to set a part of it aside"
        )
    other = load(name, data_dir)
    if other.shape != data.shape or other.tokens != data.tokens:
        raise DataError(
            f"reference set {name!r} has inputs of shape {other.shape}, but {data.name!r} has {data.shape}; "
            "they must be alike, so choose another set, 'holdout' or 'noise'"
        )
    return other.take(np.arange(min(size, len(other)))).x
