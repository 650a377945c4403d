"""F10: weights of one bit, by error feedback and straight through."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.core.params import cut
from headwater.specs import LocalSpec
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.local import local_train
from headwater.tasks.low_bit import Bits, levels
from headwater.tasks.optimizers import Stepper
from headwater.tasks.task import RunContext

WAYS = ("feedback", "straight-through")


class Three(nn.Module):
    """½‖w − x‖² for rows x, of three numbers as a rule: the gradient on a row is w − x."""

    def __init__(self, start: tuple[float, ...] = (0.0, 0.0, 3.0)) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.w - x).square().sum(1)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.mean()


def convolution() -> nn.Module:
    """Filters, both kinds of normalisation, a bias and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 1, bias=False),
        nn.GroupNorm(2, 6),
        nn.Flatten(),
        nn.Linear(6 * 4, 3),
    )


def images(rows: int = 12) -> Any:
    made = toys.blobs(rows, features=16, dtype=torch.float32)
    return replace(made, x=made.x.view(-1, 1, 4, 4))


def around(maker: Any, rows: Any, **options: Any) -> RunContext:
    return toys.context([rows], maker, **({"classes": 3} | options))


def flat(maker: Any, rows: Any) -> FlatModule:
    torch.manual_seed(0)
    return toys.ctx(around(maker, rows)).flat_module(toys.params(maker()))


ROW = replace(toys.blobs(1), x=torch.tensor([[1.0, 2.0, 0.0]], dtype=torch.float64))
ROOT2 = sqrt(2)


class TestByHand:
    """(0, 0, 3) has mean 1 and, about it, (−1, −1, 2) with the root mean square √2; the clamp cuts 2 but not −1."""

    START = (1 - ROOT2, 1 - ROOT2, 1 + ROOT2)
    REST = (ROOT2 - 1, ROOT2 - 1, 2 - ROOT2)

    def test_rounding(self) -> None:
        made = flat(Three, ROW)
        bits = Bits(made, "feedback")
        assert made.vector.tolist() == pytest.approx(self.START)
        assert bits.memory.tolist() == pytest.approx(self.REST)
        assert bits.free.tolist() == [1, 1, 0]

    def test_rounding_again_changes_nothing(self) -> None:
        """So rounding before each step is the same as after the one before it."""
        made = flat(Three, ROW)
        bits = Bits(made, "feedback")
        bits.round()
        assert made.vector.tolist() == pytest.approx(self.START, abs=1e-12)
        assert bits.memory.tolist() == pytest.approx(self.REST, abs=1e-12)

    @pytest.mark.parametrize("way", WAYS)
    def test_a_step(self, way: str) -> None:
        """The gradient at the rounded weights is q − (1, 2, 0) = (−√2, −1 − √2, 1 + √2), and lr = ½.

        By feedback v = (0, 0, 3) − ½·gradient. Straight through, the third weight keeps its 3: the clamp cut it.
        """
        made = flat(Three, ROW)
        stepper = Stepper(made, LocalSpec(steps=1, lr=0.5, low_bit=way), 1)
        stepper.step(made.loss(made(ROW.x), ROW.y))
        third = 3 - (1 + ROOT2) / 2 if way == "feedback" else 3.0
        values = torch.tensor([ROOT2 / 2, (1 + ROOT2) / 2, third], dtype=torch.float64)
        middle = values.mean()
        spread = (values - middle).square().mean().sqrt()
        expected = [float(middle + spread if v >= middle else middle - spread) for v in values]
        assert made.vector.tolist() == pytest.approx(expected, abs=1e-12)
        assert stepper.bits is not None
        assert (made.vector + stepper.bits.memory).tolist() == pytest.approx(values.tolist(), abs=1e-12)

    def test_weight_decay_acts_on_what_the_optimiser_sees(self) -> None:
        """On the rounded weight by feedback, on that of full precision straight through: −lr·decay·q or ·v."""
        still = replace(ROW, x=torch.tensor([[*self.START]], dtype=torch.float64))  # no gradient at the start
        for way, seen in (("feedback", self.START), ("straight-through", (0.0, 0.0, 3.0))):
            made = flat(Three, still)
            stepper = Stepper(made, LocalSpec(steps=1, lr=0.5, weight_decay=0.2, low_bit=way), 1)
            stepper.step(made.loss(made(still.x), still.y))
            assert stepper.bits is not None
            expected = [v - 0.1 * w for v, w in zip((0.0, 0.0, 3.0), seen, strict=True)]
            assert (made.vector + stepper.bits.memory).tolist() == pytest.approx(expected, abs=1e-12)


def test_a_filter_of_equal_values_stays() -> None:
    """No spread: the one value is both levels, and nothing is remembered."""
    for value in (0.0, 0.7):
        made = flat(lambda value=value: Three((value, value, value)), ROW)
        bits = Bits(made, "feedback")
        assert made.vector.tolist() == [value] * 3
        assert bits.memory.tolist() == [0.0] * 3


def test_levels_of_filters_and_of_layers() -> None:
    """A convolution has a mean for each filter, a matrix or a bias one for all of it."""
    made = torch.arange(24, dtype=torch.float64)
    assert levels(made.view(2, 3, 2, 2))[0].flatten().tolist() == [5.5, 17.5]
    assert levels(made.view(4, 6))[0].flatten().tolist() == levels(made)[0].flatten().tolist() == [11.5]
    assert float(levels(torch.tensor(3.0))[1]) == 0


def trained(way: str, **options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A client's model before and after three epochs."""
    place = around(convolution, images())
    start = place.initial(toys.ARCH, 0)
    spec = LocalSpec(epochs=3, batch=4, low_bit=way, **({"lr": 0.05} | options))
    return start.named(), local_train(toys.ctx(place), start=start, spec=spec).named()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_f10_at_most_two_values_a_filter(way: str, optimizer: str) -> None:
    """F10: in every filter of convolutions, in every linear layer and bias; not in normalisation layers."""
    _, found = trained(way, optimizer=optimizer, lr=0.05 if optimizer == "sgd" else 0.01)
    for name in ("0.weight", "3.weight"):
        assert all(len(filters.unique()) <= 2 for filters in found[name])
        assert len(found[name].unique()) > 2
    for name in ("0.bias", "6.weight", "6.bias"):
        assert len(found[name].unique()) == 2
    for name in ("1.weight", "1.bias", "4.weight", "4.bias", "1.running_mean"):
        assert len(found[name].unique()) > 2


@pytest.mark.parametrize("way", WAYS)
def test_f10_normalisation_is_never_rounded(way: str) -> None:
    made = flat(convolution, images())
    before = {name: view.clone() for name, view in cut(made.flat.data, made.layout.trainable).items()}
    for name in ("1.weight", "4.bias"):
        cut(made.flat.data, made.layout.trainable)[name].copy_(torch.linspace(-1, 1, len(before[name])))
    before = {name: view.clone() for name, view in cut(made.flat.data, made.layout.trainable).items()}
    bits = Bits(made, way)
    after = cut(made.flat.data, made.layout.trainable)
    memory = cut(bits.memory, made.layout.trainable)
    for name in ("1.weight", "1.bias", "4.weight", "4.bias"):
        assert torch.equal(after[name], before[name])
        assert not memory[name].any()
    for name in before:
        assert toys.gap(after[name] + memory[name], before[name]) <= 1e-6  # v = quantised + memory


def test_ways_differ_by_the_clamp_alone() -> None:
    """Two equal halves lie one root mean square from their mean, where nothing is cut: both ways are one.

    With rows that pull the halves apart evenly it stays so; an uneven start is cut and the ways part.
    """
    rows = replace(toys.blobs(1), x=torch.tensor([[0.3, 0.3, 0.9, 0.9]], dtype=torch.float64))

    def after(way: str, start: tuple[float, ...]) -> Tensor:
        spec = LocalSpec(steps=4, lr=0.3, low_bit=way)
        place = around(lambda: Three(start), rows)
        return local_train(toys.ctx(place), start=place.initial(toys.ARCH, 0), spec=spec).vector

    even, uneven = (-1.0, -1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 3.0)
    assert toys.gap(*(after(way, even) for way in WAYS)) <= 1e-12
    assert toys.gap(*(after(way, uneven) for way in WAYS)) > 1e-2


def test_error_feedback_is_gradient_descent_in_full_precision() -> None:
    """memory + q moves by −lr times the gradient at q, step by step."""
    made = flat(convolution, images())
    rows = images()
    stepper = Stepper(made, LocalSpec(steps=5, lr=0.1, low_bit="feedback"), 5)
    assert stepper.bits is not None
    for _ in range(5):
        before = made.flat.detach() + stepper.bits.memory
        made.train(len(rows))
        stepper.step(made.loss(made(rows.x), rows.y))
        assert toys.gap(made.flat.detach() + stepper.bits.memory, before - 0.1 * made.grad) <= 1e-6


def test_none_is_untouched() -> None:
    made = flat(convolution, images())
    before = made.vector.clone()
    assert Stepper(made, LocalSpec(steps=1), 1).bits is None
    assert torch.equal(made.vector, before)


@pytest.mark.parametrize("way", [WAYS[0], pytest.param(WAYS[1], marks=pytest.mark.thorough)])
def test_learns(way: str) -> None:
    """Two values a filter are enough to fall below the loss of the start."""
    place, rows = around(convolution, images(30)), images(30)
    at, start = toys.ctx(place), place.initial(toys.ARCH, 0)
    short, long = (
        local_train(at, start=start, spec=LocalSpec(epochs=epochs, batch=10, lr=0.05, low_bit=way))
        for epochs in (0, 40)
    )
    losses = [float(at.flat_module(m).loss(at.flat_module(m).outputs(rows.x), rows.y)) for m in (short, long)]
    assert losses[1] < 0.8 * losses[0]
