"""Data as everything else meets it: examples, a set with its test part, and the split that a run works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.rng import stream
from headwater.data.arrays import as_float, count_classes, inputs, labels
from headwater.data.owners import Names, Owners
from headwater.data.preparation import Preparation
from headwater.data.reference import HOLDOUT, Reference
from headwater.errors import ConfigError, DataError

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
    `class_names` a class may be without samples. Data that is already split says so with `client`, a name for each
    training sample, and perhaps `sector`. `preparation` is what has to be known of all clients' rows before they can be
    used; with it, NaN is a missing value.

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
        words: int | None = None,
        client: Names | None = None,
        sector: Names | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        # Bytes are kept as bytes: a run that uses a tenth of a set then pays for floats of a tenth.
        self._x, self._x_test = (
            inputs(x, what, tokens=tokens, missing=preparation is not None)
            for x, what in ((x_train, "x_train"), (x_test, "x_test"))
        )
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
        self.preparation = preparation
        self.words = _vocabulary(self._x, self._x_test, words, settled=preparation is None) if tokens else None
        if client is None and sector is not None:
            raise DataError("sector says where clients are, so it needs client: give one name for each training sample")
        self.owners = None if client is None else Owners.of(client, sector, len(self._y))

    @cached_property
    def train(self) -> Examples:
        return Examples(as_float(self._x), self._y)

    @cached_property
    def test(self) -> Examples:
        return Examples(as_float(self._x_test), self._y_test)

    @property
    def labels(self) -> Tensor:
        """The labels of the training samples."""
        return self._y

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

    @property
    def test_size(self) -> int:
        """The number of test samples, without turning them into floats."""
        return len(self._y_test)

    def take_test(self, share: float, seed: int) -> Examples:
        """A share of the test samples, the same for every method; a smaller share is a part of a larger one."""
        size = max(1, round(share * len(self._y_test)))
        at = torch.from_numpy(np.sort(stream(seed, "data", "test").permutation(len(self._y_test))[:size]))
        return Examples(as_float(self._x_test[at]), self._y_test[at])

    def __repr__(self) -> str:
        return f"Data({self.name!r}, {len(self)} + {len(self._y_test)} samples of {self.shape}, {self.classes} classes)"


def _vocabulary(x: Tensor, x_test: Tensor, words: int | None, settled: bool) -> int:
    """How many token numbers there are, which a model has to know before it sees them; those that are not settled yet
    are still of all words that occur."""
    least, most = int(min(x.min(), x_test.min())), int(max(x.max(), x_test.max()))
    if least < 0:
        raise DataError(f"the inputs hold the token number {least}; tokens are numbered from 0 on")
    if settled and words is not None and words <= most:
        raise DataError(f"the inputs hold the token number {most}, but words = {words}; give at least {most + 1}")
    return words or most + 1


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
    reference_labels: Tensor | None = None  # where the source has some that number the same classes
    owners: Owners | None = None  # of the rows of `train`, where the data came split
    words: int | None = None  # token numbers there are, where inputs are tokens


def carve(
    data: Data,
    *,
    fraction: float = 1.0,
    test_fraction: float = 1.0,
    validation: float = 0.1,
    reference: str = "holdout",
    reference_size: int = 5000,
    reference_noise: str = "uniform",
    reference_classes: int | Sequence[int] = (),
    reference_fraction: float = 1.0,
    reference_labelled: bool = False,
    data_dir: Path | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Split:
    """The public parts and what is left for the clients: a function of the data and the seed alone.

    A share `fraction` of the training set is drawn, and `test_fraction` of the test set. Out of the former come first
    the validation set (a share below 1, or a count) and then, with `reference = "holdout"`, the reference set. A
    reference set is never larger than `reference_size` nor than a fifth of the drawn training set, wherever it comes
    from; the other options are those of `headwater.data.reference.Reference`, and `options` those that the data was
    read with.
    """
    from headwater.data.sources import narrow, outside

    for key, share, whole in (("fraction", fraction, "training"), ("test_fraction", test_fraction, "test")):
        if not 0 < share <= 1:
            raise ConfigError(f"data.{key} must be above 0 and at most 1, got {share}; 1 uses the whole {whole} set")
    wanted = Reference(
        source=reference,
        size=reference_size,
        noise=reference_noise,
        classes=reference_classes,
        fraction=reference_fraction,
        labelled=reference_labelled,
    )
    drawn = max(1, round(fraction * len(data)))
    order = stream(seed, "data", "order").permutation(len(data))[:drawn]
    held = _validation_size(validation, drawn)
    limit = min(reference_size, drawn // 5)
    out = limit if reference == HOLDOUT else 0
    if held + out >= drawn:
        raise DataError(
            f"the validation set ({held}) and the reference set ({out}) leave nothing of the {drawn} training samples "
            "for the clients; lower data.validation or data.reference_size, or raise data.fraction"
        )
    pieces = np.split(order, [held, held + out])
    public, private = (data.take(np.sort(piece)) for piece in (pieces[0], pieces[2]))
    x: Tensor
    y: Tensor | None
    if reference == HOLDOUT:
        aside = data.take(np.sort(narrow(pieces[1], data.labels.numpy(), wanted, data.classes, seed)))
        x, y = aside.x, aside.y
    else:
        x, y = outside(data, public, wanted, limit, data_dir, seed, options)
    owners = data.owners and data.owners.take(np.sort(pieces[2]))
    test = data.test if test_fraction == 1 else data.take_test(test_fraction, seed)
    return Split(private, public, x, test, data.classes, data.shape, data.name, y, owners, data.words)


def _validation_size(wanted: float, drawn: int) -> int:
    if not wanted >= 0 or (wanted >= 1 and wanted != int(wanted)):
        raise ConfigError(
            f"data.validation must be a share from 0 up to 1 or a whole number of samples, got {wanted}; "
            "0.1 keeps a tenth, 500 keeps 500 samples"
        )
    return int(wanted) if wanted >= 1 else round(wanted * drawn)
