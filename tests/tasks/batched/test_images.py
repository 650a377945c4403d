"""Networks for images that are trained together: as each alone, with statistics and chance of each member's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.core.params import Layout, Params
from headwater.data.base import Examples
from headwater.models.building import as_in_keras
from headwater.models.cnn import cnn
from headwater.models.resnet import resnet8
from headwater.specs import LocalSpec
from headwater.tasks.batched.kernels import kernel_of
from headwater.tasks.batched.layers import obstacle
from headwater.tasks.batched.mapped import Mapped
from headwater.tasks.batched.trainer import train_together
from headwater.tasks.local import local_train
from headwater.tasks.task import RunContext
from headwater.tasks.terms import Dynamic, Proximal

SHAPE = (2, 8, 8)
SIZES = (9, 1, 8, 4)  # one batch and one row, one row, one batch, half a batch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


def rows(n: int, seed: int) -> Examples:
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *SHAPE, generator=drawn, dtype=torch.float64)
    return Examples(x, torch.randint(0, 3, (n,), generator=drawn))


class Dropped(nn.Module):
    """Every kind of dropout, one of them used twice, where the channel is last in memory and where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 3, 3), nn.Linear(27, 3)
        self.twice, self.maps, self.never = nn.Dropout(0.3), nn.Dropout2d(0.4), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.maps(self.conv(x)))
        out: Tensor = self.last(self.twice(self.never(nn.functional.max_pool2d(x, 2).flatten(1))))
        return out


def tied() -> nn.Module:
    """One batch norm at two places, whose statistics are the mean of all batches."""
    norm = nn.BatchNorm2d(2, momentum=None)
    return nn.Sequential(
        norm, nn.Conv2d(2, 2, 3, bias=False), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "no norm": lambda: cnn(SHAPE, 3, widths=(3,), hidden=4, norm="none"),
    "batch norm": lambda: cnn(SHAPE, 3, widths=(3, 4), hidden=0),
    "group norm": lambda: cnn(SHAPE, 3, widths=(4,), hidden=0, norm="group"),
    "dropout": Dropped,
    "tied": tied,
    "flat": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(128, 4, bias=False), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)
    ),
    "keras": lambda: as_in_keras(cnn(SHAPE, 3, widths=(3,), hidden=0)),
}
LARGER: dict[str, Callable[[], nn.Module]] = {
    "projection": lambda: resnet8(SHAPE, 3),
    "padding": lambda: resnet8(SHAPE, 3, shortcut="padding"),
    "groups": lambda: resnet8(SHAPE, 3, norm="group"),
}
SPECS = {
    "sgd": LocalSpec(epochs=2, batch=8, lr=0.1),
    "adam": LocalSpec(steps=3, batch=8, optimizer="adamw", lr=0.01, weight_decay=0.1, clip=0.5),
    "flipped": LocalSpec(epochs=2, batch=8, lr=0.1, momentum=0.9, augment="crop-flip"),
}


def around(model: Callable[[], nn.Module], sizes: tuple[int, ...] = SIZES) -> RunContext:
    made = toys.context([rows(n, seed) for seed, n in enumerate(sizes)], lambda: model().double(), classes=3)
    return replace(made, stack="vmap")


def alone(context: RunContext, home: str, given: dict[str, Any]) -> tuple[Params, dict[str, float]]:
    """As an engine does it: torch's generator has the seed of the task."""
    ctx = toys.ctx(context, home)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(ctx.torch_seed)
        return local_train(ctx, **given), ctx.notes


def compare(context: RunContext, spec: LocalSpec, options: Callable[[int], dict[str, Any]] = lambda at: {}) -> None:
    start, homes = context.initial(toys.ARCH, 0), list(context.rows)
    inputs = [{"start": start, "spec": spec, **options(at)} for at in range(len(homes))]
    contexts = [toys.ctx(context, home) for home in homes]
    found = train_together(contexts, inputs)
    for ctx, result, given in zip(contexts, found, inputs, strict=True):
        expected, told = alone(context, ctx.home, given)
        assert result is not None
        moved = float((expected.vector - start.vector).norm())
        assert moved > 0
        assert (result.vector - expected.vector).norm() <= 1e-11 * max(1.0, moved), ctx.home
        assert result.counters.tolist() == expected.counters.tolist()
        assert ctx.notes.pop("together") == len(homes)
        assert ctx.notes == pytest.approx(told, rel=1e-11)


QUICK = (("batch norm", "flipped"), ("dropout", "sgd"), ("group norm", "adam"))


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        pytest.param(model, spec, marks=() if (model, spec) in QUICK else pytest.mark.thorough)
        for model in MODELS
        for spec in SPECS
    ],
)
def test_equals_each_alone(model: str, spec: str) -> None:
    compare(around(MODELS[model]), SPECS[spec])


@pytest.mark.thorough
@pytest.mark.parametrize("model", LARGER.values(), ids=LARGER)
def test_larger_networks_equal_each_alone(model: Callable[[], nn.Module]) -> None:
    compare(around(model, (5, 4)), replace(SPECS["flipped"], batch=4, epochs=1))


def test_corrections_and_pulls_are_those_of_each_member() -> None:
    context = around(MODELS["batch norm"])

    def options(at: int) -> dict[str, Any]:
        other = context.initial(toys.ARCH, at + 1)
        term = Proximal(0.3) if at % 2 else Dynamic(0.2, other)
        return {"terms": (term,), "corrections": (other.trainable, None)}

    compare(context, SPECS["sgd"], options)


def test_who_is_alone_in_a_stack_is_trained_alone() -> None:
    """With batches of its own length, or by itself; no bit then differs from a loop."""
    context = around(MODELS["batch norm"], (20, 3, 4))
    given = {"start": context.initial(toys.ARCH, 0), "spec": replace(SPECS["sgd"], batch=24)}
    found = train_together([toys.ctx(context, home) for home in context.rows], [given] * 3)
    assert [result is None for result in found] == [True, False, False]
    assert train_together([toys.ctx(context, "c1")], [given]) == [None]


def test_statistics_by_hand() -> None:
    """One step: running statistics are nine tenths of the old ones and a tenth of the batch's own."""
    context = around(lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(128, 3)), (5, 3))
    given = {"start": context.initial(toys.ARCH, 0), "spec": LocalSpec(steps=1, batch=8, lr=0.1)}
    found = train_together([toys.ctx(context, home) for home in context.rows], [given] * 2)
    for home, result in zip(context.rows, found, strict=True):
        assert result is not None
        x, named = context.split.train.x[context.rows[home]], result.named()
        torch.testing.assert_close(named["0.running_mean"], 0.1 * x.mean((0, 2, 3)))
        torch.testing.assert_close(named["0.running_var"], 0.9 + 0.1 * x.transpose(0, 1).flatten(1).var(1))
        assert named["0.num_batches_tracked"] == 1


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    next(net.parameters()).requires_grad_(False)
    return net


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "recurrent": (lambda: nn.Sequential(nn.Conv1d(2, 2, 1), nn.LSTM(2, 2)), "is not stacked: 1 is LSTM"),
    "no statistics": (
        lambda: nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)),
        "batch norm without running statistics: 0",
    ),
    "nothing left": (lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.Dropout(1.0)), "drops everything: 1"),
    "frozen": (frozen, "has frozen parts"),
    "instances": (lambda: nn.Sequential(nn.InstanceNorm2d(2)), "0 is InstanceNorm2d"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_why_a_network_is_not_stacked(name: str) -> None:
    make, why = REFUSED[name]
    module = make()
    layout = Layout.of(module, "any")
    assert why in obstacle(module, layout)
    assert kernel_of(module, layout) is None


def test_the_module_itself_is_left_as_it_is() -> None:
    module = MODELS["batch norm"]()
    before = list(module.modules())
    kernel = kernel_of(module, Layout.of(module, "any"))
    assert isinstance(kernel, Mapped)
    copied, _ = kernel._parts
    assert all(p.is_meta for p in copied.parameters())
    assert list(module.modules()) == before
    assert not any(p.is_meta for p in module.parameters())
