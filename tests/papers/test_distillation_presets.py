"""Every preset of FedDF and FedEED becomes an experiment, with the networks, splits and methods that it names."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import chosen
from headwater import presets
from headwater.config import Config
from headwater.data.base import Data
from headwater.training.experiment import prepare

PRESETS = [name for name in presets.names() if name.startswith(("feddf", "fedeed")) and "fedhead" not in name]


@cache
def arrays(name: str) -> Data:
    """Random samples in the form of a data set."""
    classes, rng = {"cifar100": 100, "ag_news": 4, "sst2": 2}.get(name, 10), np.random.default_rng(0)
    shape = (128,) if classes < 10 else (3, 32, 32)
    x = [rng.integers(0, 50, (n, *shape)) if classes < 10 else rng.normal(size=(n, *shape)) for n in (600, classes)]
    y = [np.arange(n) % classes for n in (600, classes)]
    return Data(x[0], y[0], x[1], y[1], tokens=classes < 10)


@pytest.mark.parametrize("name", chosen.first(PRESETS, PRESETS[::4]))
def test_every_preset_can_be_prepared(name: str) -> None:
    """On a few samples in the form of its data, with noise to distil on."""
    config = Config.load(name)
    if config.data.name == "toy2d":
        assert len(prepare(config).split.reference) == 60
        return
    changes: dict[str, Any] = {"data": {"reference": "noise", "reference_size": 120}}
    if config.model.name == "distilbert":  # needs weights from elsewhere
        changes["model"] = {"name": "bilstm"}
    made = prepare(config.merged(changes), data=arrays(config.data.name))
    assert made.config.method == config.method
    assert len(made.tree.clients) == config.partition.clients
    assert len(made.split.reference) == 120
