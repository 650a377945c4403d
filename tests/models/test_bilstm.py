"""The recurrent net for token numbers, by itself and in runs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headwater as hw
from headwater.config import Config
from headwater.models.base import ModelSpec
from headwater.training.experiment import prepare

SMALL = {"embedding": 4, "widths": [5, 3], "hidden": [6, 4]}
QUICK: dict[str, Any] = {"clients": 3, "sectors": 1, "rounds": 1, "local__epochs": 1, "local__batch": 16}


def built(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return ModelSpec("bilstm", (6,), 3, SMALL | {"words": 20} | options).build()


def texts(rows: int = 60, words: int = 20) -> tuple[Tensor, Tensor]:
    """Padding before the words; the class is told by the word 7."""
    made = torch.Generator().manual_seed(1)
    x = torch.randint(8, words, (rows, 6), generator=made)
    x[:, :2] = 0
    y = torch.randint(2, (rows,), generator=made)
    x[y == 1, 4] = 7
    return x, y


@pytest.fixture(scope="module")
def data() -> hw.Data:
    x, y = texts()
    return hw.Data(x, y, x[:30], y[:30], tokens=True)


class TestNet:
    @pytest.mark.parametrize("activation", ["relu", "linear"])
    def test_count_of_the_published_net(self, activation: str) -> None:
        """Four gates, each with weights for input and state and two biases, in both directions."""
        total = 10_000 * 32
        for before, width in ((32, 128), (256, 64)):
            total += 2 * 4 * width * (before + width + 2)
        sizes = (128, 1024, 512, 256, 128, 64, 4)
        total += sum(a * b + b for a, b in pairwise(sizes))
        assert ModelSpec("bilstm", (128,), 4, {"activation": activation}).count() == total

    def test_dense_layers(self) -> None:
        for activation, count in (("relu", 5), ("linear", 0)):
            layers = list(ModelSpec("bilstm", (9,), 4, {"activation": activation}).outline().modules())
            assert [m.out_features for m in layers if isinstance(m, nn.Linear)] == [1024, 512, 256, 128, 64, 4]
            assert sum(isinstance(m, nn.ReLU) for m in layers) == count

    def test_linear_layers_without_relu_are_one_linear_map(self) -> None:
        features = built(activation="linear").get_submodule("features")
        dense = nn.Sequential(*list(features.children())[1:])
        a, b = torch.randn(1, 6), torch.randn(1, 6)
        torch.testing.assert_close(dense(a) + dense(b), dense(a + b) + dense(torch.zeros(1, 6)))

    def test_a_layer_by_hand(self) -> None:
        """One unit each way over two words: c = f·c + i·g, h = o·tanh(c), then the largest over the words."""
        reader = built(embedding=1, widths=[1], hidden=[]).double().get_submodule("features.0")
        embedding, layer = reader.embedding.weight.detach(), reader.layers[0]
        x = [3, 9]

        def walk(words: list[int], suffix: str) -> list[float]:
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            into, back, one, two = (getattr(layer, f"{n}_l0{suffix}").detach().flatten().tolist() for n in names)
            h = c = 0.0
            found = []
            for word in words:
                gates = [into[k] * float(embedding[word]) + back[k] * h + one[k] + two[k] for k in range(4)]
                i, f, o = (1 / (1 + math.exp(-gates[k])) for k in (0, 1, 3))
                c = f * c + i * math.tanh(gates[2])
                h = o * math.tanh(c)
                found.append(h)
            return found

        expected = [max(walk(x, "")), max(walk(x[::-1], "_reverse"))]
        assert reader(torch.tensor([x]))[0].tolist() == pytest.approx(expected, abs=1e-12)

    def test_padding_is_zero_and_stays_so(self) -> None:
        model = built()
        weight = model.get_parameter("features.0.embedding.weight")
        before, (x, y) = weight.detach().clone(), texts()
        descent = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(3):
            descent.zero_grad()
            F.cross_entropy(model(x), y).backward()
            descent.step()
        assert float(weight[0].detach().abs().sum()) == 0
        assert not torch.equal(weight[7].detach(), before[7])

    def test_the_order_of_words_matters(self) -> None:
        model = built().eval()
        x = torch.tensor([[0, 3, 4, 5, 6, 7]])
        assert not torch.allclose(model(x), model(x[:, [0, 4, 3, 2, 1, 5]]))

    def test_starts_without_forgetting(self) -> None:
        layer = built().get_submodule("features.0.layers.0")
        assert layer.bias_ih_l0.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10
        assert float(layer.bias_hh_l0.detach().abs().sum()) == 0
        square = (layer.weight_hh_l0.T @ layer.weight_hh_l0).detach()
        torch.testing.assert_close(square, torch.eye(5))


class TestRuns:
    def test_it_learns(self, data: hw.Data) -> None:
        """Trained by one client on all texts, it finds the word that tells the class."""
        settings = QUICK | {"clients": 1, "rounds": 4, "local__epochs": 25, "local__lr": 0.01, "scheme": "iid"}
        net = {f"model__{key}": value for key, value in SMALL.items()}
        run = hw.run("fedavg", data=data, engine="inline", model="bilstm", **settings, **net)
        assert run.spec.options["words"] == 20, "an embedding for each token there is"
        assert run.accuracy > 0.9
        assert run.model(data.test.x).shape == (30, 2)

    @pytest.mark.thorough
    def test_every_engine_gives_the_same_bits(self, data: hw.Data) -> None:
        net = {f"model__{key}": value for key, value in SMALL.items()}
        settings = QUICK | {"sector__epochs": 1, "workers": 2, "model": "bilstm"}
        found = [hw.run("fedhead", data=data, engine=engine, **settings, **net) for engine in ("inline", "pool")]
        assert found[0].result["model_sha256"] == found[1].result["model_sha256"]

    @pytest.mark.parametrize("stack", ["auto", "on"])
    def test_clients_are_trained_one_after_the_other(self, data: hw.Data, stack: str) -> None:
        """Neither the chain by hand nor torch's vmap is tried on a recurrent net."""
        config = Config(
            algorithm={"name": "fedavg"},
            data={"name": "arrays"},
            model={"name": "bilstm"} | SMALL,
            partition={"clients": 3, "sectors": 1},
            engine={"name": "inline", "stack": stack},
        )
        found = prepare(config, data=data).stacking
        assert (found.way, found.width) == ("loop", 1)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (
                {"model": "mlp"},
                "model 'mlp' takes values, but this data holds token numbers; use 'bag_of_words' or 'bilstm'",
            ),
            ({"model": "bilstm", "model__words": 19}, "has 20 token numbers, and model 'bilstm' knows the first 19"),
        ],
    )
    def test_what_does_not_fit_is_a_sentence(self, data: hw.Data, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(hw.ConfigError) as caught:
            hw.run("fedavg", data=data, **QUICK, **settings)
        assert words in str(caught.value)

    def test_values_are_not_read_as_tokens(self) -> None:
        x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
        mine = hw.Data(x, np.arange(40) % 2, x, np.arange(40) % 2)
        with pytest.raises(hw.ConfigError, match="'bilstm' reads token numbers, but this data holds values"):
            hw.run("fedavg", data=mine, model="bilstm", **QUICK)

    def test_a_net_of_ones_own_gets_token_numbers(self, data: hw.Data) -> None:
        class Bag(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words, self.last = nn.EmbeddingBag(20, 6), nn.Linear(6, 2)

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = self.last(self.words(x))
                return out

        run = hw.run("fedproto", data=data, model=Bag, engine="inline", **QUICK)
        assert run.spec.tokens
        assert run.spec.head == "last"
