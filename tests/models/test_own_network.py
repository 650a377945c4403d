"""A network of the user's own, named as package.module:Name, wherever a listed one is accepted."""

from __future__ import annotations

import sys
import types

import pytest
from torch import Tensor, nn

from headwater.config import Config
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.training.experiment import prepare
from models.contract import check_model


class OwnNet(nn.Module):
    def __init__(self, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout))
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


def anything(**options: int) -> nn.Module:
    return OwnNet(**options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def own_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_nets")
    module.OwnNet, module.anything = OwnNet, anything  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_nets", module)


def test_it_keeps_the_contract_of_listed_ones() -> None:
    check_model(ModelSpec("own_nets:OwnNet", (1, 8, 8), 10, {"width": 4}))


def test_options_reach_it() -> None:
    made = prepare(Config.load("fedavg", ["model.name=own_nets:OwnNet", "model.width=5"]))
    assert made.model.count() == 65 * 5 + 6 * 10
    free = prepare(Config.load("fedavg", ["model.name=own_nets:anything", "model.width=5"]))
    assert free.model.count() == made.model.count()


def test_clients_may_have_it_beside_a_listed_one() -> None:
    made = prepare(Config.load("feddf", ["model.name=mlp", 'model.also=["own_nets:OwnNet", "linear"]']))
    assert made.tree.archs == ("mlp", "own_nets:OwnNet", "linear")
    assert made.models["own_nets:OwnNet"].count() == 65 * 16 + 17 * 10


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("model.widht=3", r"no setting called 'model\.widht'; did you mean 'model\.width'"),
        ("model.width=wide", r"model\.width must be a whole number, got 'wide'"),
        ("model.dropout=true", r"model\.dropout must be a number, got true"),
    ],
)
def test_mistakes_are_named_as_for_listed_ones(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Config.load("fedavg", ["model.name=own_nets:OwnNet", setting])


@pytest.mark.parametrize("also", ['["mpl"]', '["own_nets:OwnNet", "own_nets:OwnNet"]', '["mlp"]'])
def test_what_cannot_stand_beside_is_refused(also: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.also takes listed models or 'package\.module:Name'"):
        prepare(Config.load("feddf", ["model.name=mlp", f"model.also={also}"]))
