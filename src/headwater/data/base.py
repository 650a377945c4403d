"""Data sets in memory: `Examples` (inputs and labels) and `Data` (a training and a test part)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.rng import stream
from headwater.data.arrays import Names, Owners, as_float, count_classes, inputs, labels
from headwater.errors import DataError
from headwater.partition.divide import kept

if TYPE_CHECKING:
    from headwater.data.preparation import Preparation

Array = np.ndarray[Any, np.dtype[Any]]
Indices = Sequence[int] | np.ndarray[Any, np.dtype[np.int64]] | Tensor
FOUR = ("x_train", "y_train", "x_test", "y_test")  # names of the arrays in a .npz file


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and their labels.

    Args:
        x: inputs, samples first: float32, or int64 token numbers.
        y: one int64 label per sample.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Indices) -> Examples:
        """The examples at these positions, in this order.

        Args:
            indices: sample numbers.
        """
        at = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return Examples(self.x[at], self.y[at])


class Data:
    """A labelled data set with a test part, from arrays or tensors.

    Args:
        x_train: training inputs, samples first. Images of bytes, (n, h, w), (n, h, w, c) or (n, c, h, w), become
            float32 in [-1, 1] with the channel first. Floats are used as they are; whole numbers become floats unless
            `tokens` is set.
        y_train: labels 0 … classes - 1, one per training sample.
        x_test: test inputs of the same shape and kind.
        y_test: labels of the test samples.
        name: the name of the set in messages and results.
        class_names: one name per class. Without them every class must occur in `y_train`.
        tokens: whether inputs are token numbers of texts, where 0 is padding.
        words: how many token numbers there are; by default the largest that occurs plus 1.
        client: for data that is already split, the name of the client that holds each training sample.
        sector: the name of that client's sector for each training sample; needs `client`.
        preparation: the exchange that prepares inputs with statistics over all clients before round 1. With it, NaN
            stands for a missing value.

    Raises:
        DataError: the arrays do not fit together; the message says which and why.

    Example:
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
        # Bytes are kept as bytes, so that only the samples that a run uses are converted to floats.
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
        for what, given in (("class_names", class_names), ("client", client), ("sector", sector)):
            if given is not None and not isinstance(given, Iterable):
                raise DataError(f"{what} must be a list, got {given!r}")
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
        """All training examples."""
        return Examples(as_float(self._x), self._y)

    @cached_property
    def test(self) -> Examples:
        """All test examples."""
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
        """The training examples at these positions. Only these are converted to floats.

        Args:
            indices: sample numbers of the training part.
        """
        at = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return Examples(as_float(self._x[at]), self._y[at])

    @property
    def test_size(self) -> int:
        """The number of test samples, without converting them to floats."""
        return len(self._y_test)

    def take_test(self, share: float, seed: int) -> Examples:
        """A random share of the test samples. A smaller share is a subset of a larger one.

        Args:
            share: above 0 and at most 1.
            seed: of the draw.
        """
        size = max(1, round(share * len(self._y_test)))
        at = torch.from_numpy(np.sort(stream(seed, "data", "test").permutation(len(self._y_test))[:size]))
        return Examples(as_float(self._x_test[at]), self._y_test[at])

    def __repr__(self) -> str:
        return f"Data({self.name!r}, {len(self)} + {len(self._y_test)} samples of {self.shape}, {self.classes} classes)"


def _vocabulary(x: Tensor, x_test: Tensor, words: int | None, settled: bool) -> int:
    """How many token numbers there are, which sizes the embedding.

    Before the clients have agreed on a vocabulary (`settled` is False), inputs hold numbers of all words that occur.
    """
    least, most = int(min(x.min(), x_test.min())), int(max(x.max(), x_test.max()))
    if least < 0:
        raise DataError(f"the inputs hold the token number {least}; tokens are numbered from 0 on")
    if settled and words is not None and words <= most:
        raise DataError(f"the inputs hold the token number {most}, but words = {words}; give at least {most + 1}")
    return words or most + 1


def held_out(
    x: Array, y: Array, for_tests: Array, *, client: Array | None = None, sector: Array | None = None, **about: Any
) -> Data:
    """`Data` from arrays of all samples and a mask of those that are the test part.

    Args:
        x: inputs, samples first.
        y: labels.
        for_tests: whether each sample is for tests, such as `fifth_of` returns it.
        client: the client's name of each sample, if they have owners.
        sector: the sector's name of each sample, likewise.
        about: further arguments of `Data`.
    """
    owner, place = (None if names is None else names[~for_tests] for names in (client, sector))
    return Data(x[~for_tests], y[~for_tests], x[for_tests], y[for_tests], client=owner, sector=place, **about)


def fifth_of(x: Array, y: Array, what: str, owner: Array | None = None) -> Array:
    """Which samples of these arrays are the test part; see `held_for_tests`.

    Args:
        x: inputs, samples first.
        y: labels.
        what: the name of the data, for messages.
        owner: the client's name of each sample, if they have owners.
    """
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise DataError(
            f"{what} has inputs of shape {x.shape} and labels of shape {y.shape}; each sample needs one label"
        )
    if owner is not None and len(owner) != len(x):
        raise DataError(f"{what} has {len(owner)} entries in client for {len(x)} samples; give one for each")
    return held_for_tests(owner, len(x), what)


def held_for_tests(owner: Array | None, samples: int, what: str) -> Array:
    """Which samples are the test part: a fifth of each client's, or of all if `owner` is None.

    Args:
        owner: the client's name of each sample. Every client keeps at least one sample to train on.
        samples: how many there are, at least 5.
        what: the name of the data, for messages.

    Returns:
        A boolean mask, the same for every seed so that scores can be compared.
    """
    if samples < 5:
        raise DataError(f"{what} has {samples} samples; at least 5 are needed to set a fifth aside for tests")
    for_tests = np.zeros(samples, dtype=bool)
    if owner is not None:
        names = np.array([str(name) for name in owner])
        for number, name in enumerate(sorted(set(names))):
            rows = np.flatnonzero(names == name)
            for_tests[stream(0, "test split", number).permutation(rows)[: kept(len(rows), 1 / 5)]] = True
    if not for_tests.any():
        for_tests[stream(0, "test split").permutation(samples)[: samples // 5]] = True
    return for_tests
