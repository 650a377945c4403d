from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwater.core.params import Params
from headwater.models.base import ModelSpec, Net
from headwater.tasks.bn_folding import Folded, twin_of
from headwater.tasks.flat_module import FlatModule

SHAPE = (3, 8, 8)
NETS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("resnet8", {"norm": "batch"}, {}),
    ("resnet8", {"norm": "batch", "shortcut": "padding"}, {}),
    ("resnet8", {"norm": "batch"}, {"projection": 6, "bn_head": True}),
    ("resnet20", {"norm": "batch"}, {}),
    ("wrn16_2", {}, {}),
    ("shufflenetv2", {}, {}),
    ("cnn", {"norm": "batch"}, {}),
]


def stirred(module: nn.Module, seed: int = 0) -> nn.Module:
    """A net whose every number, statistics too, is its own."""
    torch.manual_seed(seed)
    module.double()
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor) * 0.3)
    return module


def double(spec: ModelSpec) -> ModelSpec:
    return ModelSpec("own", spec.shape, spec.classes, builder=lambda: spec.build().double())


def sequence() -> nn.Module:
    """Batch norm after convolutions with and without bias, with groups, without parameters, and not after one."""
    layers = [nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, bias=True), nn.BatchNorm2d(4, eps=0.1), nn.ReLU()]
    layers += [nn.Conv2d(4, 6, 3, groups=2, padding=1, padding_mode="circular", bias=False)]
    layers += [nn.BatchNorm2d(6, affine=False), nn.Tanh(), nn.BatchNorm2d(6), nn.ReLU()]
    return Net(nn.Sequential(*layers, nn.Flatten()), nn.Linear(6 * 6 * 6, 3))


def close(found: Tensor, expected: Tensor) -> bool:
    return float((found - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


class TestOutputs:
    X = torch.randn(70, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def check(self, spec: ModelSpec, rows: int = 70) -> None:
        flat, x = FlatModule(double(spec), "own"), self.X[:rows]
        for seed in (0, 1):  # of two models one after the other, as of several teachers
            module = stirred(spec.build(), seed).eval()
            flat.load(Params.of(module, "own"))
            assert twin_of(module) is not None
            with torch.no_grad():
                assert close(flat.outputs(x), module(x))
                assert close(flat.represent(x), module.features(x))

    @pytest.mark.thorough
    @pytest.mark.parametrize(("name", "options", "head"), NETS)
    def test_of_listed_nets(self, name: str, options: dict[str, Any], head: dict[str, Any]) -> None:
        # Convolutions of single channels are very slow in double precision.
        self.check(ModelSpec(name, SHAPE, 3, options, **head), rows=4 if name == "shufflenetv2" else 70)

    def test_of_a_sequence(self) -> None:
        self.check(ModelSpec("own", SHAPE, 3, builder=sequence))

    def test_follow_training(self) -> None:
        """What is folded is what the net holds at the time, and a step in between is not disturbed by it."""
        spec = double(ModelSpec("resnet8", SHAPE, 3, {"norm": "batch"}))
        flat, plain = FlatModule(spec, "own"), stirred(spec.build())
        flat.load(Params.of(plain, "own"))
        for asked in (True, False, True):
            if asked:
                flat.outputs(self.X)
            flat.train(8)
            plain.train()
            for net in (flat, plain):
                out = net(self.X[:8])
                out.square().mean().backward()
            with torch.no_grad():
                for parameter in plain.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
                flat.flat -= 0.1 * flat.grad
                flat.grad.zero_()
        with torch.no_grad():
            assert close(flat.outputs(self.X), plain.eval()(self.X))


class Own(nn.Module):
    """Nobody knows what it does with its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body[1](self.body[0](x) + 1)
        return out


def shared() -> nn.Module:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(3), conv)


def listened() -> nn.Module:
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    made[0].register_forward_hook(lambda module, given, output: output * 2)
    return made


def unstatistical() -> nn.Module:
    """Batch norm that looks at the batch in evaluation too."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))


def linear() -> nn.Module:
    """Of inputs with a length, a linear layer works on the last axis and this norm on the one before."""
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize("maker", [Own, shared, listened, unstatistical, linear])
def test_where_it_would_not_be_the_same(maker: Callable[[], nn.Module]) -> None:
    assert twin_of(maker()) is None


@pytest.mark.parametrize("options", [{"norm": "group"}, {"norm": "none"}])
def test_without_batch_norm_there_is_nothing_to_fold(options: dict[str, Any]) -> None:
    assert twin_of(ModelSpec("cnn", SHAPE, 3, options).build()) is None


def test_every_pair_of_the_residual_net() -> None:
    """The stem, two convolutions in each of three blocks, and two shortcuts."""
    twin = twin_of(ModelSpec("resnet8", SHAPE, 3, {"norm": "batch"}).build())
    assert twin is not None
    folded = [part for part in twin.ready().modules() if isinstance(part, Folded)]
    assert len(folded) == 1 + 6 + 2
    assert not any(isinstance(part, nn.BatchNorm2d) for part in twin.ready().modules())
