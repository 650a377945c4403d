"""FedAlign against FedAvg, and the models it can work with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import toys
from headwater.algorithms.fedalign import FedAlign
from headwater.algorithms.fedavg import FedAvg
from headwater.config import Config
from headwater.core.params import Params
from headwater.data.base import Data
from headwater.errors import ConfigError
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.training.experiment import prepare
from headwater.training.loop import train

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.05)
ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((9, 5, 7))]


def net() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3)).double()


def play(method: Any, maker: Any = net) -> Params:
    return toys.play(method, ROWS, (0, 1, 1), maker, 3, classes=3)


@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_b11_without_the_term(by: str) -> None:
    """B11: mu = 0 is FedAvg; at full width there is nothing to align, which is FedAvg too."""
    plain = play(FedAvg(LOCAL, by=by))
    assert toys.gap(play(FedAlign(LOCAL, mu=0.0, by=by)), plain) <= 1e-10
    assert toys.gap(play(FedAlign(LOCAL, width=1.0, by=by)), plain) <= 1e-10
    assert toys.gap(play(FedAlign(LOCAL, by=by)), plain) > 1e-3


def images(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (rows,), generator=draw)
    return torch.rand(rows, 3, 8, 8, generator=draw) + y.view(-1, 1, 1, 1), y


PICTURES = Data(*images(40, 0), *images(20, 1))


@pytest.mark.parametrize(
    "model",
    [
        {"name": "resnet8"},
        {"name": "resnet8", "shortcut": "padding", "norm": "group"},
        {"name": "cnn", "widths": [4, 8], "hidden": 6},
        {"name": "cnn", "widths": [4], "hidden": 0, "norm": "none"},
        {"name": "mlp", "hidden": [9, 7]},
        {"name": "mlp", "hidden": [9], "projection": 8},
    ],
)
def test_listed_models(model: dict[str, Any]) -> None:
    """The term reaches every listed model that has a block: its run differs from the one without."""
    found = []
    for mu in (0.45, 0.0):
        tree: dict[str, Any] = {"algorithm": {"name": "fedalign", "mu": mu}, "model": model, "rounds": 1}
        tree |= {"data": {"name": "arrays"}, "engine": {"name": "inline"}, "local": {"epochs": 1, "batch": 8}}
        config = Config(partition={"clients": 2, "sectors": 1, "scheme": "iid"}, **tree)
        found.append(train(prepare(config, data=PICTURES)).params[""].vector)
    assert toys.gap(found[0], found[1]) > 1e-6
    assert bool(torch.isfinite(found[0]).all())


def test_a_model_without_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="fedalign runs the last stage"):
        train(toys.tiny("fedalign", model=lambda: Net(nn.Flatten(), nn.Linear(4, 3))))


def test_suits() -> None:
    """The paper's optimiser, as far as there is one like it."""
    local = toys.tiny("fedalign").method.local  # type: ignore[attr-defined]
    found = (local.optimizer, local.lr, local.momentum, local.weight_decay, local.clip)
    assert found == ("sgd", 0.01, 0.9, 1e-4, 10.0)
