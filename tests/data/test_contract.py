"""What every listed data set promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwater.data import DATASETS
from headwater.data.base import Data, load

SIZES = {
    "digits": (1438, 359, (1, 8, 8), 10),
    "fashion_mnist": (60_000, 10_000, (1, 28, 28), 10),
    "cifar10": (50_000, 10_000, (3, 32, 32), 10),
    "tiny_imagenet32": (8_000, 2_000, (3, 32, 32), 200),
}


@pytest.fixture(params=list(DATASETS))
def found(request: pytest.FixtureRequest) -> Data:
    """Every set twice would be slow to decode; the determinism of the files' sets is tested on small ones."""
    name: str = request.param
    if name == "digits":
        return load(name)
    folder: Path = request.getfixturevalue("real_data")
    if not (folder / name).is_dir():
        pytest.skip(f"{name} is not in the data directory")
    return load(name, folder)


def test_keeps_what_the_table_says(found: Data) -> None:
    assert (len(found), len(found.test), found.shape, found.classes) == SIZES[found.name]
    assert len(found.class_names) == found.classes
    assert len(set(found.class_names)) == found.classes
    some = found.take(range(0, len(found), 97))
    for part in (some, found.test):
        assert part.x.dtype == torch.float32
        assert part.y.dtype == torch.int64
        assert tuple(part.x.shape[1:]) == found.shape
        assert float(part.x.min()) == -1.0
        assert float(part.x.max()) == 1.0
        assert 0 <= int(part.y.min()) <= int(part.y.max()) < found.classes
        assert len(part.y.unique()) == found.classes or len(part) < 5 * found.classes
