"""Loss terms: the value by hand, and the gradient against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import toys
from headwater.core.params import Params
from headwater.specs import LocalSpec
from headwater.tasks.local import Batch, local_train
from headwater.tasks.terms import Dynamic, Proximal

AROUND = toys.context([toys.bowl([[1, 0], [0, 2]], [1, 1], rows=1)], toys.Bowl)
START = AROUND.initial(toys.ARCH, 0)  # (0, 0)
OWN = replace(START, vector=torch.tensor([0.5, -3.0], dtype=torch.float64))


def at(w: tuple[float, float], start: Params = START) -> Batch:
    """One batch of a client that has got to w from `start`."""
    here = toys.ctx(AROUND)
    rows = here.data
    assert rows is not None
    flat = here.flat_module(replace(start, vector=torch.tensor(w, dtype=torch.float64)))
    output = flat(rows.x)
    return Batch(here, flat, start, rows.x, rows.y, output, flat.loss(output, rows.y), torch.tensor([0]))


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (Proximal(3.0), 0.5 * 3 * (4 + 1)),  # ‖(2, −1)‖² = 5
        (Proximal(0.0), 0.0),
        (Dynamic(3.0), 7.5),
        (Dynamic(3.0, OWN), 7.5 - (0.5 * 2 + 3)),  # ⟨(0.5, −3), (2, −1)⟩ = 4
    ],
)
def test_value(term: Callable[[Batch], Tensor], expected: float) -> None:
    assert float(term(at((2.0, -1.0))).detach()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("term", [Proximal(0.7), Dynamic(0.7), Dynamic(0.7, OWN)], ids=str)
def test_gradient(term: Callable[[Batch], Tensor]) -> None:
    """By central differences in both directions, from a start that is not zero."""
    start = replace(START, vector=torch.tensor([0.3, -0.4], dtype=torch.float64))
    step = at((2.0, -1.0), start)
    (found,) = torch.autograd.grad(term(step), list(step.net.module.parameters()))
    small = 1e-5
    for k in range(2):
        ends = []
        for sign in (1, -1):
            w = [2.0, -1.0]
            w[k] += sign * small
            ends.append(float(term(at((w[0], w[1]), start)).detach()))
        assert float(found[k]) == pytest.approx((ends[0] - ends[1]) / (2 * small), abs=1e-8)
    assert float(found.abs().max()) > 0.1


def test_dynamic_without_a_gradient_is_proximal() -> None:
    spec = LocalSpec(steps=3, batch=8, lr=0.1)
    trained = [local_train(toys.ctx(AROUND), START, spec, terms=(t,)).vector for t in (Dynamic(0.4), Proximal(0.4))]
    assert torch.equal(*trained)


def test_dynamic_is_a_pull_and_a_correction() -> None:
    """Its linear part is what adding −gradient to every step does."""
    spec = LocalSpec(steps=3, batch=8, lr=0.1)
    whole = local_train(toys.ctx(AROUND), START, spec, terms=(Dynamic(0.4, OWN),))
    parts = local_train(toys.ctx(AROUND), START, spec, terms=(Proximal(0.4),), corrections=(-1 * OWN,))
    assert toys.gap(whole, parts) <= 1e-12


def test_only_what_is_trained_counts() -> None:
    """Of a model with batch norm, statistics neither pull nor are pulled."""
    around = toys.context([toys.blobs(6, dtype=torch.float32)], toys.normed, classes=3)
    start = around.initial(toys.ARCH, 0)
    far = start.vector.clone()
    far[start.layout.size :] = 50.0
    here = toys.ctx(around)
    flat = here.flat_module(replace(start, vector=far))
    rows = here.data
    assert rows is not None
    output = flat(rows.x)
    step = Batch(here, flat, start, rows.x, rows.y, output, flat.loss(output, rows.y), torch.arange(6))
    assert float(Dynamic(1.0)(step).detach()) == 0.0
