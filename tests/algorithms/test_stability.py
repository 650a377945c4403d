"""At its default settings no method produces a number that is none, however unlike the clients are."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import torch

from headwater.algorithms import ALGORITHMS
from headwater.config import Config
from headwater.data.base import Data
from headwater.data.loading import load
from headwater.training.experiment import prepare
from headwater.training.loop import train

QUICK = ("fedavg",)  # ten rounds take seconds
FEW = ("fedavg", "fedhead+", "fedeed", "mtgc", "fedhkd")  # a method of each kind
every_method = pytest.mark.parametrize(
    "method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.thorough) for m in ALGORITHMS]
)
slow = pytest.mark.skipif(os.environ.get("HEADWATER_SLOW") != "1", reason="takes minutes: set HEADWATER_SLOW=1")
every_skew = pytest.mark.parametrize("alpha", [pytest.param(0.05, marks=slow), 0.01])
HARD = {"rounds": 10, "faults": {"bad_update": "stop"}, "engine": {"name": "inline"}}


def finite(config: Config, data: Data | None = None) -> None:
    """Ten rounds to the end: the first update that is not finite would have ended the run with an error."""
    found = train(prepare(config, data=data))
    assert len(found.history) == 10
    assert not any("bad_updates" in row for row in found.history)
    assert all(torch.isfinite(model.vector).all() for model in found.params.values())
    assert all(0 <= row["accuracy"] <= 1 for row in found.history)


@every_skew
@every_method
def test_digits(method: str, alpha: float) -> None:
    partition = {"clients": 10, "sectors": 2, "alpha": alpha}
    finite(Config(algorithm={"name": method}, data={"fraction": 0.1}, partition=partition, **HARD))


@cache
def photographs(folder: Path) -> Data:
    whole = load("cifar10", folder)
    some, test = whole.take(range(160)), whole.test.take(range(40))
    return Data(some.x, some.y, test.x, test.y)


@pytest.mark.thorough
@every_skew
@pytest.mark.parametrize("method", [m if m in FEW else pytest.param(m, marks=slow) for m in ALGORITHMS])
def test_photographs(method: str, alpha: float, real_data: Path) -> None:
    """A few photographs and the small net, so that it is over soon; all other settings are the defaults."""
    model = {"name": "mlp", "hidden": [16, 16]} if method == "fedma" else {"name": "cnn", "widths": [4, 8], "hidden": 8}
    config = Config(
        algorithm={"name": method},
        partition={"clients": 10, "sectors": 2, "alpha": alpha},
        model=model,
        **HARD,
    )
    finite(config, photographs(real_data))
