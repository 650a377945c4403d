"""Clients trained together: equal to each alone, and the same whoever else is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import toys
from headwater.core.params import Layout, Params
from headwater.data.base import Examples
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.tasks.batched.kernels import Chain, kernel_of
from headwater.tasks.batched.mapped import Mapped
from headwater.tasks.batched.trainer import train_together
from headwater.tasks.local import local_train
from headwater.tasks.task import RunContext
from headwater.tasks.terms import Dynamic, Proximal

SIZES = (23, 1, 8, 16, 7, 30, 3)  # whole and partial batches, one below eight, one sample


def rows(n: int, seed: int, features: int = 5, classes: int = 3, dtype: torch.dtype = torch.float64) -> Examples:
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=drawn, dtype=dtype)
    return Examples(x, torch.randint(0, classes, (n,), generator=drawn))


class Own(nn.Module):
    """A model whose forward pass is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(F.silu(self.norm(self.first(x))))
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(5, 3).double(),
    "without bias": lambda: nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)).double(),
    "perceptron": lambda: Net(nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.ReLU()), nn.Linear(7, 3)).double(),
    "deep": lambda: nn.Sequential(
        *(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Sigmoid(), nn.Identity(), nn.Linear(6, 3), nn.ReLU())
    ).double(),
    "own": lambda: Own().double(),
}
SPECS = {
    "sgd": LocalSpec(epochs=2, batch=8, lr=0.2),
    "steps": LocalSpec(steps=5, batch=8, lr=0.2),
    "momentum": LocalSpec(epochs=2, batch=8, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": LocalSpec(epochs=3, batch=8, optimizer="adam", lr=0.01),
    "adamw": LocalSpec(epochs=1, batch=5, optimizer="adamw", lr=0.01, weight_decay=0.1),
    "clip": LocalSpec(epochs=2, batch=8, lr=0.5, clip=0.1),
    "decay": LocalSpec(epochs=2, batch=8, lr=0.5, lr_time_decay=0.3),
    "drop last": LocalSpec(epochs=2, batch=8, lr=0.2, drop_last=True),
    "whole": LocalSpec(epochs=3, batch=64, lr=0.2),
}


def around(model: Callable[[], nn.Module], sizes: tuple[int, ...] = SIZES, **kind: Any) -> RunContext:
    made = toys.context([rows(n, seed, **kind) for seed, n in enumerate(sizes)], model, classes=3)
    return replace(made, stack="vmap")


def together(
    context: RunContext, homes: list[str], spec: LocalSpec, **options: Any
) -> tuple[list[Params | None], list[dict[str, float]]]:
    """Results and notes of some homes; an option that is a list is given member by member."""
    contexts = [toys.ctx(context, home) for home in homes]
    inputs = [{"start": context.initial(toys.ARCH, 0), "spec": spec} for _ in homes]
    for name, value in options.items():
        for at, given in enumerate(inputs):
            given[name] = value[at] if isinstance(value, list) else value
    return train_together(contexts, inputs), [ctx.notes for ctx in contexts]


def alone(context: RunContext, home: str, spec: LocalSpec, **options: Any) -> tuple[Params, dict[str, float]]:
    ctx = toys.ctx(context, home)
    return local_train(ctx, context.initial(toys.ARCH, 0), spec, **options), ctx.notes


def compare(context: RunContext, spec: LocalSpec, options: Callable[[int], dict[str, Any]] = lambda at: {}) -> None:
    homes = [f"c{at}" for at in range(len(SIZES))]
    given: dict[str, list[Any]] = {}
    for at in range(len(homes)):
        for name, value in options(at).items():
            given.setdefault(name, []).append(value)
    found, notes = together(context, homes, spec, **given)
    for at, home in enumerate(homes):
        expected, told = alone(context, home, spec, **options(at))
        result = found[at]
        assert result is not None
        moved = (expected.vector - context.initial(toys.ARCH, 0).vector).norm()
        assert (result.vector - expected.vector).norm() <= 1e-12 * max(1.0, float(moved)), home
        assert (result.weight, result.layout) == (expected.weight, expected.layout)
        assert notes[at].pop("together") >= 1
        assert notes[at] == pytest.approx(told, rel=1e-12)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_equals_each_alone(model: Callable[[], nn.Module], spec: LocalSpec) -> None:
    compare(around(model), spec)


@pytest.mark.parametrize("spec", [SPECS["sgd"], SPECS["adam"], SPECS["clip"]], ids=["sgd", "adam", "clip"])
@pytest.mark.parametrize("model", [MODELS["perceptron"], MODELS["own"]], ids=["perceptron", "own"])
def test_corrections_and_pulls_are_those_of_each_member(model: Callable[[], nn.Module], spec: LocalSpec) -> None:
    context = around(model)
    start = context.initial(toys.ARCH, 0)

    def options(at: int) -> dict[str, Any]:
        other = context.initial(toys.ARCH, at + 1)
        corrections = (None, start - other, other.trainable) if at % 3 else (None,)
        terms = ((), (Proximal(0.5),), (Dynamic(0.3, other),), (Dynamic(0.2), Proximal(0.1)))[at % 4]
        return {"corrections": corrections, "terms": terms, "by": "uniform" if at % 2 else "samples"}

    compare(context, spec, options)


def test_members_may_start_from_different_models() -> None:
    context = around(MODELS["perceptron"])
    starts = [context.initial(toys.ARCH, at) for at in range(len(SIZES))]
    contexts = [toys.ctx(context, f"c{at}") for at in range(len(SIZES))]
    found = train_together(contexts, [{"start": start, "spec": SPECS["sgd"]} for start in starts])
    for at, start in enumerate(starts):
        expected = local_train(toys.ctx(context, f"c{at}"), start, SPECS["sgd"])
        assert toys.gap(found[at], expected) <= 1e-12


@pytest.mark.parametrize("spec", [SPECS["sgd"], SPECS["adam"]], ids=["sgd", "adam"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_result_lies_on_a_boundary(spec: LocalSpec, dtype: torch.dtype) -> None:
    """As one that was read from a file does: kernels may round by where their operands lie."""
    model = (lambda: nn.Linear(5, 3).double()) if dtype == torch.float64 else (lambda: nn.Linear(5, 3))
    found, _ = together(around(model, dtype=dtype), ["c0", "c2", "c3"], spec)
    assert [result.vector.data_ptr() % 64 for result in found if result] == [0, 0, 0]


@pytest.mark.parametrize("spec", [SPECS["sgd"], SPECS["adam"]], ids=["sgd", "adam"])
@pytest.mark.parametrize("count", [1, 3, len(SIZES)])
def test_nothing_that_was_given_is_changed(count: int, spec: LocalSpec) -> None:
    """Also where a member is alone in its stack, since no other has batches of its length."""
    context = around(MODELS["perceptron"])
    start = context.initial(toys.ARCH, 0)
    before, table = start.vector.clone(), context.split.train.x.clone()
    contexts = [toys.ctx(context, f"c{at}") for at in range(count)]
    train_together(contexts, [{"start": start, "spec": spec}] * count)
    assert torch.equal(start.vector, before)
    assert torch.equal(context.split.train.x, table)


def frozen() -> nn.Module:
    net = toys.net()
    next(net.parameters()).requires_grad_(False)
    return net


def hooked() -> nn.Module:
    net = toys.net()
    net.register_forward_hook(lambda module, given, output: output * 2)
    return net


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def one_weight() -> nn.Module:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


class Loss(nn.Linear):
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return output.square().mean()


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (lambda: nn.Linear(3, 3), Chain),
        (toys.net, Chain),
        (Own, Mapped),
        (tied, Mapped),
        (one_weight, Mapped),
        (hooked, type(None)),
        (toys.normed, Mapped),
        (frozen, type(None)),
        (lambda: Loss(3, 3), type(None)),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), Mapped),
        (lambda: nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(3, 3)), Mapped),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Softplus()), type(None)),
        (lambda: nn.Linear(1000, 101), Chain),
        (lambda: nn.Sequential(nn.Linear(1000, 100), nn.GELU(), nn.Linear(100, 10)), type(None)),  # too large for vmap
    ],
)
def test_which_models_are_stacked_and_how(model: Callable[[], nn.Module], kind: type) -> None:
    made = model()
    assert type(kernel_of(made, Layout.of(made, "any"))) is kind


@pytest.mark.parametrize(
    "options",
    [{"data": rows(4, 0)}, {"terms": (lambda step: step.loss,)}, {"spec": replace(SPECS["sgd"], low_bit="feedback")}],
    ids=["other rows", "a term of its own", "one bit"],
)
def test_who_cannot_be_stacked_is_told_apart(options: dict[str, Any]) -> None:
    context = around(MODELS["perceptron"])
    given = {"start": context.initial(toys.ARCH, 0), "spec": SPECS["sgd"]}
    contexts = [toys.ctx(context, "c0"), toys.ctx(context, "c1")]
    found = train_together(contexts, [given | options, given])
    assert found[0] is None
    assert found[1] is not None


def test_vmap_is_for_those_who_ask() -> None:
    context = replace(around(MODELS["own"]), stack="hand")
    assert together(context, ["c0", "c1"], SPECS["sgd"])[0] == [None, None]


def test_a_layer_over_the_last_axis_is_not_taken_for_a_flat_one() -> None:
    """Without a Flatten, a linear layer works on the last axis of its input alone."""
    flat, not_flat = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), nn.Sequential(nn.Linear(6, 3), nn.Flatten())
    for module, wanted in ((flat, True), (not_flat, False)):
        kernel = kernel_of(module, Layout.of(module, "any"))
        assert isinstance(kernel, Chain)
        assert kernel.takes((6,))
        assert kernel.takes((2, 3)) is wanted
