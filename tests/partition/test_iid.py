"""Equal chance."""

from __future__ import annotations

import numpy as np

from headwater.core.rng import stream
from headwater.partition.iid import Iid


def test_sizes_differ_by_at_most_one() -> None:
    sizes = {len(part) for part in Iid().split(np.zeros(103, np.int64), 10, stream(0))}
    assert sizes == {10, 11}


def test_labels_are_spread_fairly() -> None:
    labels = np.repeat([0, 1], 5000)
    for part in Iid().split(labels, 4, stream(0)):
        assert abs(labels[part].mean() - 0.5) < 0.04  # four standard deviations
