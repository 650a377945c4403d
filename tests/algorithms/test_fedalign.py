"""FedAlign's term: eigenvalues and maps by hand, its value and gradient, and what it must leave alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.algorithms.fedalign import Steepness, steepness, top_eigenvalue, transmitting
from headwater.models.base import Net
from headwater.models.slim import thin
from headwater.specs import LocalSpec
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.local import Batch, local_train


def double(*numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_power_iteration_by_hand() -> None:
    """(2 1; 1 2) has the ones as its first eigenvector: 3, at once after the first, whose start is not of length 1.

    diag(4, 1): K·(1, 1) = (4, 1), of length √17; then K·(4, 1)/√17 = (16, 1)/√17, of length √(257/17); in the end 4.
    """
    matrices = double([[2.0, 1.0], [1.0, 2.0]], [[4.0, 0.0], [0.0, 1.0]])
    first, second, tenth = (top_eigenvalue(matrices, n).tolist() for n in (1, 2, 10))
    assert first == pytest.approx([3 * math.sqrt(2), math.sqrt(17)], abs=1e-12)
    assert second == pytest.approx([3.0, math.sqrt(257 / 17)], abs=1e-12)
    assert tenth == pytest.approx([3.0, 4.0], abs=1e-9)


def test_product_of_maps_by_hand() -> None:
    """One input channel of 2 × 2 pixels, pooled to its mean 2.5; two output channels of one pixel, 2 and −4."""
    inside = double([[[1.0, 2.0], [3.0, 4.0]]])
    outside = double([[[2.0]], [[-4.0]]])
    assert transmitting(inside, outside).tolist() == [[[5.0, -10.0]]]
    assert transmitting(double([1.0, 3.0]), double([2.0])).tolist() == [[[2.0], [6.0]]]
    two = double([[[1.0, 3.0]]])  # of two pixels: the mean of their products, (1·1 + 3·3)/2
    assert transmitting(two, two).tolist() == [[[5.0]]]


def test_steepness_of_vectors_is_the_product_of_lengths() -> None:
    """T = x·hᵀ has the one singular value ‖x‖·‖h‖ = 5·13."""
    assert steepness(double([3.0, 4.0]), double([5.0, 12.0]), 10).tolist() == pytest.approx([65.0], abs=1e-9)


def test_empty_maps_have_a_gradient() -> None:
    h = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    steepness(torch.ones(2, 3, dtype=torch.float64), h, 10).sum().backward()
    assert h.grad is not None
    assert bool(torch.isfinite(h.grad).all())


def small() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 3)).double()


ROWS = toys.blobs(6)
AROUND = toys.context([ROWS], small, classes=3)


def prepared(term: Steepness) -> tuple[FlatModule, Callable[[], tuple[Tensor, Tensor]]]:
    """A flat, and how to compute loss and term there."""
    ctx = toys.ctx(AROUND)
    start = AROUND.initial(toys.ARCH, 0)
    flat = ctx.flat_module(start)

    def value() -> tuple[Tensor, Tensor]:
        output = flat(ROWS.x)
        loss = flat.loss(output, ROWS.y)
        return loss, term(Batch(ctx, flat, start, ROWS.x, ROWS.y, output, loss, torch.arange(6)))

    return flat, value


def test_value_is_a_share_of_the_loss() -> None:
    """mu · (loss / d) · d."""
    loss, term = prepared(Steepness(0.45, 0.5, 10))[1]()
    assert float(term.detach()) == pytest.approx(0.45 * float(loss.detach()), rel=1e-12)


def test_nothing_to_align_at_full_width() -> None:
    """The copy is the block itself, d = 0, and the term is 0 with a gradient of 0, not 0/0."""
    flat, value = prepared(Steepness(0.45, 1.0, 10))
    term = value()[1]
    flat.grad.zero_()
    term.backward()
    assert float(term.detach()) == 0.0
    assert float(flat.grad.abs().max()) == 0.0


def test_gradient_by_finite_differences() -> None:
    """That of d through the thin pass alone, times the number mu·loss/d; input and full block are held."""
    flat, value = prepared(Steepness(0.7, 0.5, 10))
    features = flat.module.features
    assert isinstance(features, nn.Sequential)
    with torch.no_grad():
        inside = features[:2](ROWS.x)
        full = steepness(inside, features[2:](inside), 10)

    def apart() -> float:
        with torch.no_grad():
            some = steepness(inside[:, :2], thin(list(features[2:]), inside[:, :2], 0.5), 10)
        return float((some - full).square().mean())

    loss, term = value()
    flat.grad.zero_()
    term.backward()
    slope, factor, step = flat.grad.clone(), 0.7 * float(loss.detach()) / apart(), 1e-6
    assert float(slope.abs().max()) > 1e-2
    for i in range(len(slope)):
        ends = []
        for side in (step, -2 * step):
            flat.vector[i] += side
            ends.append(apart())
        flat.vector[i] += step
        assert factor * (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(slope[i]), abs=1e-6)


def test_only_the_first_channels_of_the_last_block_feel_it() -> None:
    """Of 4 × 4 weights the first 2 × 2, of 4 biases the first 2."""
    flat, value = prepared(Steepness(0.7, 0.5, 10))
    flat.grad.zero_()
    value()[1].backward()
    weight, bias = (flat.module.get_parameter(f"features.2.{name}").grad for name in ("weight", "bias"))
    assert weight is not None
    assert bias is not None
    touched = torch.zeros(4, 4, dtype=torch.bool)
    touched[:2, :2] = True
    assert torch.equal(weight != 0, touched)
    assert (bias != 0).tolist() == [True, True, False, False]
    assert int((flat.grad != 0).sum()) == 6


def test_running_statistics_are_those_of_one_pass() -> None:
    """After one step a model with batch norm has seen each batch once, with the term as without."""
    around = toys.context([toys.blobs(8, dtype=torch.float32)], toys.normed, classes=3)
    start, spec = around.initial(toys.ARCH, 0), LocalSpec(steps=1, batch=8, lr=0.1)
    plain, aligned = (
        local_train(toys.ctx(around), start, spec, terms=terms) for terms in ((), (Steepness(0.45, 0.5, 10),))
    )
    size = start.layout.size
    assert torch.equal(plain.vector[size:], aligned.vector[size:])
    assert plain.counters.tolist() == aligned.counters.tolist() == [1]
    assert toys.gap(plain.vector[:size], aligned.vector[:size]) > 1e-4
