"""`carve` cuts a data set into the public parts and the rows that clients hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from headwater.core.rng import stream
from headwater.data import HOLDOUT, UNUSED, Reference
from headwater.data.arrays import Owners
from headwater.data.base import Data, Examples
from headwater.data.reference_sources import narrow, outside
from headwater.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class Split:
    """The parts of the data that a run works with.

    Args:
        train: private; the clients hold its rows.
        validation: public.
        reference: public inputs without labels, which students are distilled on.
        test: for scores only.
        classes: the number of classes.
        shape: of one input.
        name: of the data set.
        reference_labels: labels of `reference`, if its source has some for the same classes.
        owners: which client holds each row of `train`, if the data was already split.
        words: how many token numbers there are, if inputs are tokens.
        reference_own_labels: labels of `reference` that number the classes of its source, if it has any.
        local_test_source: whether clients' own tests are rows of `train` or of `test`.
    """

    train: Examples
    validation: Examples
    reference: Tensor
    test: Examples
    classes: int
    shape: tuple[int, ...]
    name: str
    reference_labels: Tensor | None = None
    owners: Owners | None = None
    words: int | None = None
    reference_own_labels: Tensor | None = None
    local_test_source: Literal["train", "test"] = "train"

    @property
    def local_tests(self) -> Examples:
        """The set whose rows clients' own tests are."""
        return self.train if self.local_test_source == "train" else self.test


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
    """Cut a data set into public parts and the rows of the clients. The result depends on data, options and seed only.

    First a share of the training set is drawn. Out of it come the validation set and then, with
    `reference = "holdout"`, the reference set; all other rows belong to the clients. With `reference = "unused"`, the
    reference set comes out of the rows that were not drawn.

    Args:
        data: the whole set.
        fraction: the share of the training set that is used at all.
        test_fraction: the share of the test set that is used.
        validation: size of the validation set: a share below 1, or a whole number of samples.
        reference: source of the reference set: "holdout"; "unused", the training samples that `fraction` leaves out;
            "noise", "generator", a data set's name, a path or "package.module:function".
        reference_size: its largest size. A fifth of the drawn training set is a further limit for "holdout".
        reference_noise: "uniform" or "gaussian", for the source "noise".
        reference_classes: how many or which classes of the source are used; all if empty.
        reference_fraction: the share of the source that is used.
        reference_labelled: whether the source's labels number the same classes as the data's.
        data_dir: the data directory, for a source that is a listed set.
        seed: of all draws.
        options: the options that the data was read with; a reference set of the same kind is read alike.

    Raises:
        ConfigError: an option is out of its range.
        DataError: nothing is left for the clients, or the reference set does not fit the data.
    """
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
    order, left = np.split(stream(seed, "data", "order").permutation(len(data)), [drawn])
    validation_size = _validation_size(validation, drawn)
    out = min(reference_size, drawn // 5) if reference == HOLDOUT else 0
    if validation_size + out >= drawn:
        raise DataError(
            f"the validation set ({validation_size}) and the reference set ({out}) leave nothing of the {drawn} "
            "training samples for the clients; lower data.validation or data.reference_size, or raise data.fraction"
        )
    if reference == UNUSED and reference_size and not len(left):
        raise DataError(
            "data.reference = 'unused' takes training samples that data.fraction leaves over, and "
            f"data.fraction = {fraction:g} leaves none; lower it, use data.reference = 'holdout', or set "
            "data.reference_size = 0"
        )
    pieces = np.split(order, [validation_size, validation_size + out])
    public, private = (data.take(np.sort(piece)) for piece in (pieces[0], pieces[2]))
    x: Tensor
    y: Tensor | None
    own: Tensor | None
    if reference in (HOLDOUT, UNUSED):
        rows = left if reference == UNUSED else pieces[1]
        rows = narrow(rows, data.labels.numpy(), wanted, data.classes, seed)[:reference_size]
        aside = data.take(np.sort(rows))
        x, y, own = aside.x, aside.y, aside.y
    else:
        x, y, own = outside(data, public, wanted, reference_size, data_dir, seed, options)
    owners = data.owners and data.owners.take(np.sort(pieces[2]))
    test = data.test if test_fraction == 1 else data.take_test(test_fraction, seed)
    return Split(
        private, public, x, test, data.classes, data.shape, data.name, y, owners, data.words, reference_own_labels=own
    )


def _validation_size(wanted: float, drawn: int) -> int:
    if not wanted >= 0 or (wanted >= 1 and wanted != int(wanted)):
        raise ConfigError(
            f"data.validation must be a share from 0 up to 1 or a whole number of samples, got {wanted}; "
            "0.1 keeps a tenth, 500 keeps 500 samples"
        )
    return int(wanted) if wanted >= 1 else round(wanted * drawn)
