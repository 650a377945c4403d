"""FedMA: what matching recovers that averaging destroys, and what it sends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedma import FedMa
from headwater.config import Config
from headwater.core.params import Params, average_of
from headwater.data.base import Data, Examples
from headwater.errors import ConfigError
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.tasks.matching import Prior, assembled, layer_of, match_layer, neurons, placed, retrain, rewired
from headwater.theory.communication import Active, Payload, round_traffic
from headwater.theory.traffic import model_bytes
from headwater.training.experiment import prepare
from headwater.training.loop import train

NONE = LocalSpec(epochs=0, batch=4)
LOCAL = LocalSpec(epochs=2, batch=4, lr=0.2)


def mlp() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)).double()


def cnn() -> nn.Module:
    """Two convolutions and a hidden layer on images of 4 × 4 px: 2 × 2 of each channel are left to flatten."""
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(20, 6), nn.ReLU()]
    return Net(nn.Sequential(*layers), nn.Linear(6, 3)).double()


def images(rows: int, seed: int) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    return Examples(
        torch.randn(rows, 1, 4, 4, generator=draw, dtype=torch.float64), torch.randint(3, (rows,), generator=draw)
    )


def permuted(model: Params, layers: Sequence[str], seed: int) -> Params:
    """The same function with all hidden neurons in another order."""
    draw = torch.Generator().manual_seed(seed)
    for layer, following in pairwise(layers):
        rows = neurons(model, layer)
        places = torch.randperm(len(rows), generator=draw)
        moved = torch.empty_like(rows)
        moved[places] = rows
        model = rewired(placed(model, layer, moved), following, places)
    return model


@pytest.mark.parametrize(("maker", "rows"), [(mlp, toys.blobs), (cnn, images)])
def test_b10_permuted_copies_are_recovered(maker: Any, rows: Any) -> None:
    """B10: the cycle over all layers of permuted copies of one net gives that net's function; their mean does not."""
    around = toys.context([rows(8, seed=i) for i in range(4)], maker, classes=3)
    start, x = around.initial(toys.ARCH, 0), rows(20, seed=9).x
    server, layers = toys.ctx(around, "server"), [n for n, _ in _weights(start)]
    models = {f"c{i}": permuted(start, layers, seed=i) for i in range(4)}
    mean = average_of(models, by="uniform")
    done: list[Tensor] = []
    for number in range(len(layers) - 1):
        sent = {c: layer_of(toys.ctx(around, c), m, number) for c, m in models.items()}
        found = match_layer(server, sent, tuple(models), Prior())
        done.append(found["layer"])
        models = {
            c: retrain(toys.ctx(around, c), m, found["layer"], found["places"][c], number, NONE)
            for c, m in models.items()
        }
    last = {c: layer_of(toys.ctx(around, c), m, len(layers) - 1) for c, m in models.items()}
    joined = assembled(server, start, tuple(done), last, dict.fromkeys(models, 1.0))
    expected, found_out, averaged = (server.flat_module(m).outputs(x) for m in (start, joined, mean))
    assert toys.gap(found_out, expected) <= 1e-10
    assert toys.gap(averaged, expected) > 1e-2


def _weights(model: Params) -> list[tuple[str, Tensor]]:
    return [(name.removesuffix(".weight"), t) for name, t in model.named().items() if name.endswith(".weight")]


ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((9, 5, 7))]


def play(method: Any, maker: Any = mlp, rounds: int = 2) -> Params:
    return toys.play(method, ROWS, (0, 1, 1), maker, rounds, classes=3)


@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_without_hidden_layers_it_is_fedavg(by: str) -> None:
    """There is nothing to match: the last layer is averaged by samples, or alike."""

    def maker() -> nn.Module:
        return Net(nn.Flatten(), nn.Linear(3, 3)).double()

    assert toys.gap(play(FedMa(LOCAL, by=by), maker), play(FedAvg(LOCAL, by=by), maker)) <= 1e-10


def test_without_training_nothing_changes() -> None:
    """All clients hold the one model: each neuron is matched to itself."""
    before = toys.context(ROWS, mlp, classes=3).initial(toys.ARCH, 0)
    assert toys.gap(play(FedMa(NONE), rounds=3), before) <= 1e-12


def test_shrinking_pulls_hidden_layers_to_zero() -> None:
    """Three clients and the prior at 0: three quarters of what they hold, layer by layer, and the last one whole."""
    start = toys.context(ROWS, mlp, classes=3).initial(toys.ARCH, 0)
    found = play(FedMa(NONE, shrink=True), rounds=1)
    for name, factor in (("features.0", 0.75), ("features.2", 0.75), ("classifier", 1.0)):
        assert toys.gap(neurons(found, name), factor * neurons(start, name)) <= 1e-12


def live(model: Params) -> list[int]:
    return [int(neurons(model, name).any(1).sum()) for name in ("features.0", "features.2")]


def test_spare_room_is_grown_into() -> None:
    """Half of each hidden layer is empty at first; unlike clients with eager priors fill it, up to the width."""
    eager = {"gamma": 1e6, "sigma": 0.05, "spare": 0.5}
    with toys.lab(FedMa(LOCAL, **eager), ROWS, (0, 1, 1), mlp, classes=3) as lab:
        before = live(lab.model)
        widths = [live(lab.round(number).model) for number in (1, 2, 3)]
    assert before == [3, 2]
    assert widths[-1][0] > 3
    assert all(first <= 6 and second <= 5 for first, second in widths)
    with toys.lab(FedMa(LOCAL, **(eager | {"gamma": 1e-9})), ROWS, (0, 1, 1), mlp, classes=3) as lab:
        assert live(lab.round(1).model) == [3, 2], "a prior that wants no more neurons gets no more"


def test_ledger_of_three_layers() -> None:
    """The formula with the model's own numbers of layers and neurons: 4 → 6 → 5 → 3."""
    config = Config(
        algorithm={"name": "fedma"},
        data={"name": "arrays"},
        model={"name": "mlp", "hidden": [6, 5]},
        partition={"clients": 3, "sectors": 2, "scheme": "iid"},
        local={"epochs": 1, "batch": 8},
        engine={"name": "inline"},
        rounds=1,
    )
    found = train(prepare(config, data=toys.tiny_data())).ledger.summary()
    sizes = Payload(model=model_bytes(4 * 6 + 6 + 6 * 5 + 5 + 5 * 3 + 3), classes=3, features=4 * 5)
    expected = round_traffic("fedma", Active((2, 1)), sizes, {"layers": 3, "neurons": 11})
    for tier in ("server_sector", "sector_client"):
        link = getattr(expected, tier)
        assert found[tier] == {name: getattr(link, name) for name in found[tier]}
    assert found["server_sector"]["round_trips"] == 9


def test_suits_a_perceptron_also_for_images() -> None:
    shown = torch.rand(30, 1, 4, 4), torch.arange(30) % 3
    config = Config(algorithm={"name": "fedma"}, data={"name": "arrays"}, partition={"clients": 2, "sectors": 1})
    assert prepare(config, data=Data(*shown, *shown)).model.name == "mlp"


def test_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fedma matches neurons .* has a BatchNorm1d; use 'mlp', 'vgg9'"):
        train(toys.tiny("fedma", model=lambda: toys.normed(4, 3)))
