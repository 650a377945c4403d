"""What people bring as models: what works as it is, and what is refused in a sentence before anything runs."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.config import Config
from headwater.data.base import Data
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.models.fit import fitted
from headwater.training.experiment import prepare

Maker = Callable[[], nn.Module]
Pair = namedtuple("Pair", ("logits", "auxiliary"))


class Does(nn.Module):
    """A linear layer and whatever is done with its output."""

    def __init__(self, then: Callable[[nn.Module, Tensor], Any], outputs: int = 3) -> None:
        super().__init__()
        self.last, self.then = nn.Linear(4, outputs), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self, self.last(x))


class Inplace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x -= 1
        return self.last(x)  # type: ignore[no-any-return]


def frozen() -> nn.Module:
    return nn.Linear(4, 3).requires_grad_(False)


def mixed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).double())


def restless() -> nn.Module:
    """Batch norm that never keeps statistics has nothing to say of a single input."""
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))


class TestRefuses:
    @pytest.mark.parametrize(
        ("maker", "sentence"),
        [
            (Does, "model 'custom' cannot be called without arguments (missing a required argument: 'then'); give a"),
            (nn.Identity, "model 'custom' has no parameters, so there is nothing to train"),
            (frozen, "model 'custom' has only frozen parameters"),
            (mixed, "parameters of several kinds (float32, float64)"),
            (lambda: nn.Linear(4, 7), "gives (2, 7) in evaluation for 2 inputs, and must give (2, 3)"),
            (lambda: nn.Linear(4, 1), "gives (2, 1) in evaluation for 2 inputs, and must give (2, 3)"),
            (lambda: nn.Linear(9, 3), "cannot be called in evaluation with 2 inputs of shape (4,) holding values"),
            (lambda: nn.Linear(4, 3).double(), "inputs of shape (4,) holding values (float32): mat1 and mat2"),
            (lambda: Does(lambda own, x: x.squeeze(0)), "gives (3,) in evaluation for a single input, and must give"),
            (lambda: Does(lambda own, x: x.argmax(1)), "gives torch.int64 in evaluation for 2 inputs"),
            (lambda: Does(lambda own, x: {"logits": x}), "gives a dict in evaluation; it must return one tensor"),
            (lambda: Does(lambda own, x: x.detach()), "has no gradient, so it cannot be trained"),
            (lambda: Does(lambda own, x: Pair(x, x) if own.training else x), "gives a Pair in training"),
            (restless, "cannot be called in evaluation with a single input"),
            (Inplace, "overwrites its inputs in evaluation"),
        ],
    )
    def test_before_anything_runs(self, maker: Maker, sentence: str) -> None:
        with pytest.raises(ConfigError) as caught:
            toys.tiny("fedavg", model=maker)
        assert sentence in str(caught.value)

    @pytest.mark.filterwarnings("ignore:Lazy modules")
    def test_a_layer_that_never_gets_a_size(self) -> None:
        def maker() -> nn.Module:
            made = nn.Linear(4, 3)
            made.extra = nn.LazyLinear(2)
            return made

        with pytest.raises(ConfigError, match=r"never calls the layer of 'extra\.weight', which has no size yet"):
            toys.tiny("fedavg", model=maker)

    @pytest.mark.filterwarnings("ignore:Lazy modules")
    def test_inputs_that_give_no_size(self) -> None:
        with pytest.raises(
            ConfigError, match=r"layers without a size, and inputs of shape \(4,\) do not give them one"
        ):
            toys.tiny("fedavg", model=lambda: nn.Sequential(nn.LazyConv2d(2, 3), nn.Flatten(), nn.LazyLinear(3)))


class Picky(nn.Module):
    """Buffers of several kinds, a list of layers, dropout, a mask, a constant that is not part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, True, True, False]))
        self.register_buffer("passing", torch.ones(1), persistent=False)
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 5)])
        self.heads = nn.ParameterDict({"w": nn.Parameter(torch.randn(5, 3)), "b": nn.Parameter(torch.zeros(3))})
        self.fixed = nn.Parameter(torch.tensor([2.0]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        x = (x - self.mean) * self.mask * self.fixed * self.passing
        for layer in self.layers:
            x = nn.functional.dropout(torch.relu(layer(x)), 0.2, self.training)
        return x @ self.heads["w"] + self.heads["b"]


class Viewing(nn.Module):
    """As in many a tutorial: feature maps become rows by `view`, which minds how they lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Linear(4 * 3 * 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(nn.functional.max_pool2d(torch.relu(self.one(x)), 2).view(-1, 36))  # type: ignore[no-any-return]


class Reshaping(Viewing):
    def forward(self, x: Tensor) -> Tensor:
        return self.two(nn.functional.max_pool2d(torch.relu(self.one(x)), 2).flatten(1))  # type: ignore[no-any-return]


class TestWorks:
    @pytest.mark.parametrize("method", ["fedavg", "fedhkd", "feddf"])
    def test_views_of_images(self, method: str) -> None:
        """It gets its images as they are, and what it learns is what one that does not mind learns."""
        made = torch.Generator().manual_seed(0)
        x, y = torch.rand(60, 3, 8, 8, generator=made), torch.arange(60) % 3
        data = Data(x, y, x[:20], y[:20])
        own, other = (toys.tiny_run(method, model=maker, arrays=data) for maker in (Viewing, Reshaping))
        assert (own.spec.channel_first, other.spec.channel_first) == (True, False)
        torch.testing.assert_close(own.params[""].vector, other.params[""].vector, rtol=1e-4, atol=1e-5)

    def test_buffers_of_all_kinds(self) -> None:
        run = toys.tiny_run("fedavg", model=Picky, sizes=((8, 16), (0, 0)))
        model = run.model
        assert isinstance(model, Picky)
        assert model.fixed.tolist() == [2.0]
        assert model.mean.tolist() == [0.5] * 4
        assert model.mask.tolist() == [True, True, True, False]
        assert int(model.calls) == 4, "two rounds of two batches at the larger client; integers take the largest"
        assert "passing" not in run.params[""].named()

    def test_dropout_is_drawn_by_the_seed(self) -> None:
        first, again = (toys.tiny_run("fedavg", model=Picky) for _ in range(2))
        assert first.result["model_sha256"] == again.result["model_sha256"]
        assert toys.tiny_run("fedavg", model=Picky, seed=1).result["model_sha256"] != first.result["model_sha256"]

    @pytest.mark.filterwarnings("ignore:Lazy modules")
    @pytest.mark.parametrize("method", ["fedavg", "fedproto"])
    def test_layers_that_take_their_size_from_the_data(self, method: str) -> None:
        """They are drawn as if the size had been given."""

        def lazy() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))

        def given() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

        found = [toys.tiny_run(method, model=maker).result["model_sha256"] for maker in (lazy, given)]
        assert found[0] == found[1]

    def test_a_loss_of_its_own_may_have_any_output(self) -> None:
        spec = ModelSpec("custom", (6,), 2, builder=lambda: toys.Bowl().float())
        assert fitted(spec, None) == spec

    @pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), 0.0])
    def test_an_attribute_called_loss(self, loss: Any) -> None:
        """A loss that is kept as a layer is used, a number that is called so is not; both may be split."""

        class Kept(nn.Sequential):
            def __init__(self) -> None:
                super().__init__(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
                self.loss = loss

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = self[2](self[1](self[0](x)))
                return out

        run = toys.tiny_run("fedproto", model=Kept, algorithm={"share_params": True})
        plain = toys.tiny_run(
            "fedproto",
            model=lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
            algorithm={"share_params": True},
        )
        assert run.result["model_sha256"] == plain.result["model_sha256"]

    def test_one_that_was_left_in_evaluation_is_trained_all_the_same(self) -> None:
        def maker() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).eval()

        run = toys.tiny_run("fedavg", model=maker)
        assert int(run.params[""].named()["1.num_batches_tracked"]) > 0

    def test_one_that_does_otherwise_in_training(self) -> None:
        """Not even the number of features need be the same."""

        class Wide(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two, self.last = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.last(self.one(x) + self.two(x) if self.training else self.one(x))  # type: ignore[no-any-return]

        assert toys.tiny("fedproto", model=Wide).model.head == "last"

    def test_a_model_by_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a configuration names it, with options and without parts."""
        import sys
        import types

        def maker(width: int = 5) -> nn.Module:
            return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))

        module = types.ModuleType("somebodys_nets")
        module.maker = maker  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "somebodys_nets", module)
        config = Config(
            algorithm={"name": "fedproto"},
            data={"name": "arrays"},
            model={"name": "somebodys_nets:maker", "width": 7},
            partition={"clients": 3, "sectors": 1},
        )
        made = prepare(config, data=toys.tiny_data())
        assert made.model.head == "2"
        assert made.model.count() == 4 * 7 + 7 + 7 * 3 + 3
