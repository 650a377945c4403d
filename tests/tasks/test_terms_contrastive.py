"""MOON's term: its value by hand, its gradient, and what stands for a model that is not there yet."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import toys
from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.models.base import Net
from headwater.tasks.flat_module import FlatModule
from headwater.tasks.local import Batch
from headwater.tasks.task import RunContext
from headwater.tasks.terms import Contrast, remember


def flat() -> nn.Module:
    """Features are W·x with W of 2 × 2, in double precision."""
    return Net(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()


ROWS = toys.blobs(6, features=2, classes=2)
AROUND = toys.context([ROWS], flat, classes=2)
ALL = torch.arange(6)


def model(*first_column: float) -> Params:
    """The model whose features of (1, 0) are these."""
    net = flat()
    net.features.weight.data = torch.tensor([[first_column[0], 0.0], [first_column[1], 1.0]], dtype=torch.float64)
    return toys.params(net)


def prepared(
    term: Contrast, now: Params, start: Params, index: Tensor, around: RunContext = AROUND
) -> tuple[FlatModule, Callable[[], Tensor]]:
    """The flat of a model in training, and how to compute its term for these rows."""
    ctx = toys.ctx(around)
    begun, flat = term.begin(ctx, start), ctx.flat_module(now)
    assert ctx.data is not None
    x, y = ctx.data.x[index], ctx.data.y[index]

    def value() -> Tensor:
        features = flat.features(x)
        output = flat.classify(features)
        return begun(Batch(ctx, flat, start, x, y, output, flat.loss(output, y), index, known=features))

    return flat, value


def value_of(term: Contrast, now: Params, start: Params, index: Tensor, around: RunContext = AROUND) -> float:
    return float(prepared(term, now, start, index, around)[1]().detach())


def test_value_by_hand() -> None:
    """z = (3, 4), z_global = (4, 3), z_last = (1, 0): cosines 24/25 and 3/5, over tau = ½ they are 1.92 and 1.2.

    The cross-entropy of label 0 is ln(1 + e^(1.2 − 1.92)), times mu = 2. With a further model (0, 1), cosine 4/5, it is
    ln(1 + e^(1.2 − 1.92) + e^(1.6 − 1.92)).
    """
    one = Examples(torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([1]))
    around, row = toys.context([one], flat), torch.tensor([0])
    two = value_of(Contrast(2.0, 0.5, (model(1, 0),)), model(3, 4), model(4, 3), row, around)
    assert two == pytest.approx(2 * math.log(1 + math.exp(-0.72)), abs=1e-12)
    three = value_of(Contrast(2.0, 0.5, (model(1, 0), model(0, 1))), model(3, 4), model(4, 3), row, around)
    assert three == pytest.approx(2 * math.log(1 + math.exp(-0.72) + math.exp(-0.32)), abs=1e-12)


def test_b5_equal_models_make_a_constant() -> None:
    """B5: if the global is the previous model, the value is ln 2 and nothing pulls."""
    start = model(2, 1)
    flat, value = prepared(Contrast(1.0, 0.5, (start,)), model(3, -1), start, ALL)
    found = value()
    assert float(found.detach()) == pytest.approx(math.log(2), abs=1e-12)
    flat.grad.zero_()
    found.backward()
    assert float(flat.grad.abs().max()) <= 1e-12


def test_gradient_by_finite_differences() -> None:
    flat, value = prepared(Contrast(1.5, 0.3, (model(1, -2),)), model(3, 1), model(2, 1), torch.arange(2, 5))
    flat.grad.zero_()
    value().backward()
    slope, step = flat.grad.clone(), 1e-6
    assert float(slope.abs().max()) > 1e-2
    for i in range(len(slope)):
        ends = []
        for side in (step, -2 * step):
            flat.vector[i] += side
            ends.append(float(value().detach()))
        flat.vector[i] += step
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(slope[i]), abs=1e-7)


def test_who_never_took_part() -> None:
    """The run's first model stands for the previous one, or the received one, which makes a constant."""
    start, first = model(2, 1), AROUND.initial(toys.ARCH, 0)
    given = value_of(Contrast(1.0, 0.5, (first,)), model(3, 1), start, ALL)
    assert value_of(Contrast(1.0, 0.5), model(3, 1), start, ALL) == given != pytest.approx(math.log(2), abs=1e-3)
    received = value_of(Contrast(1.0, 0.5, first="received"), model(3, 1), start, ALL)
    assert received == pytest.approx(math.log(2), abs=1e-12)


def test_features_belong_to_the_rows_of_the_batch() -> None:
    """A batch of rows 4 and 1 meets the frozen features of rows 4 and 1."""
    term = Contrast(1.0, 0.5, (model(1, -2),))
    alone = [value_of(term, model(3, 1), model(2, 1), torch.tensor([i])) for i in (4, 1)]
    both = value_of(term, model(3, 1), model(2, 1), torch.tensor([4, 1]))
    assert both == pytest.approx(sum(alone) / 2, abs=1e-12)
    assert alone[0] != pytest.approx(alone[1], abs=1e-3)


def test_remember() -> None:
    ctx, models = toys.ctx(AROUND), [model(i, 1) for i in range(3)]
    kept = remember(ctx, models[0], None, 2)
    kept = remember(ctx, models[1], kept, 2)
    assert remember(ctx, models[2], kept, 2) == (models[2], models[1])
