"""The tasks behind SCAFFOLD, FedDyn, MTGC and FedAvgM, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import toys
from headwater.algorithms.fedavgm import momentum_step
from headwater.algorithms.scaffold import rebuilt
from headwater.core.params import Params
from headwater.models.base import ModelSpec
from headwater.specs import LocalSpec
from headwater.tasks.corrections import (
    alike,
    buffers_caution,
    check_path,
    check_steps,
    corrected,
    dual,
    dynamic_server,
    gradient_at,
    minus,
    moved,
    shift,
    step_towards,
    total,
    variate,
    zeros_like,
)

ROWS = [toys.blobs(10, dtype=torch.float32), toys.blobs(3, 1, dtype=torch.float32)]
AROUND = toys.context(ROWS, toys.normed, classes=3)
HERE = toys.ctx(AROUND)
START = AROUND.initial(toys.ARCH, 0)
SIZE = START.layout.size
SPEC = LocalSpec(epochs=2, batch=4, lr=0.5)  # 6 steps for 10 rows, 2 for 3


def drawn(seed: int, weight: float = 1.0) -> Params:
    """A model whose statistics differ too."""
    numbers = np.random.default_rng(seed).normal(size=len(START.vector))
    return replace(START, vector=torch.tensor(numbers), weight=weight)


A, B, C, D = (drawn(seed) for seed in range(4))


def only_trained(found: Params, expected: torch.Tensor) -> bool:
    """The trained part is as expected and statistics are zero."""
    return toys.gap(found.trainable, expected) <= 1e-12 and not found.vector[SIZE:].any()


def test_there_are_statistics() -> None:
    assert len(A.vector) > SIZE


def test_zeros_and_minus() -> None:
    assert not zeros_like(HERE, A).vector.any()
    assert only_trained(minus(HERE, A, B), A.trainable - B.trainable)
    assert only_trained(minus(HERE, A, None), A.trainable)


def test_total_is_a_sum_of_sums() -> None:
    a, b, c = drawn(1, 3.0), drawn(2, 1.0), drawn(3, 2.0)
    whole = total(HERE, {"a": a, "b": b, "c": c})
    assert toys.gap(whole, 3 * a.vector + b.vector + 2 * c.vector) <= 1e-12
    parts = {"s0": total(HERE, {"a": a, "b": b}), "s1": total(HERE, {"c": c})}
    assert toys.gap(total(HERE, parts), whole) <= 1e-12


def test_shift_and_step() -> None:
    assert toys.gap(shift(HERE, A, B, 0.25).trainable, A.trainable + 0.25 * B.trainable) <= 1e-12
    half = step_towards(HERE, A, B, 0.5)
    assert toys.gap(half.trainable, 0.5 * (A.trainable + B.trainable)) <= 1e-12
    assert torch.equal(half.vector[SIZE:], B.vector[SIZE:])  # statistics are the mean's
    assert step_towards(HERE, A, B, 1.0) is B
    assert torch.equal(moved(A, B, 2.0).vector[SIZE:], A.vector[SIZE:])


def test_inputs_are_left_alone() -> None:
    before = [m.vector.clone() for m in (A, B, C, D)]
    corrected(HERE, A, B, C, 0.5)
    variate(HERE, A, B, C, D, SPEC)
    dual(HERE, A, B, C, 0.5)
    dynamic_server(HERE, A, B, C, 0.5, 3)
    momentum_step(HERE, A, B, C, 0.5, 1.0, True)
    rebuilt(HERE, {"c0": A, "c1": B}, C, D, 0.5, {"c0": 1, "c1": 2})
    total(HERE, {"a": A, "b": B})
    gradient_at(HERE, A, SPEC)
    assert all(torch.equal(m.vector, v) for m, v in zip((A, B, C, D), before, strict=True))


@pytest.mark.parametrize("batch", [99, 4, 3])
def test_gradient_at(batch: int) -> None:
    """The mean over all rows, however they are cut: against autograd on a plain module."""
    rows = toys.blobs(10)
    around = toys.context([rows], toys.net, classes=3)
    start = around.initial(toys.ARCH, 0)
    module = start.load_into(toys.net())
    expected = torch.autograd.grad(F.cross_entropy(module(rows.x), rows.y), list(module.parameters()))
    found = gradient_at(toys.ctx(around), start, replace(SPEC, batch=batch))
    assert toys.gap(found, torch.cat([g.reshape(-1) for g in expected])) <= 1e-12
    assert found.weight == 10
    assert gradient_at(toys.ctx(around), start, SPEC, by="uniform").weight == 1


def test_gradient_at_leaves_statistics_out() -> None:
    found = gradient_at(HERE, START, SPEC)
    assert found.trainable.abs().max() > 0
    assert not found.vector[SIZE:].any()


def test_corrected() -> None:
    change = (B.trainable - C.trainable) / 0.4
    assert only_trained(corrected(HERE, None, B, C, 0.4), change)
    old = minus(HERE, A, None)
    assert only_trained(corrected(HERE, old, B, C, 0.4), A.trainable + change)


@pytest.mark.parametrize(("home", "steps"), [("c0", 6), ("c1", 2)])
def test_variate_counts_its_own_steps(home: str, steps: int) -> None:
    """c_i − c + (received − trained) / (K · lr), K being this client's: 2 epochs of 10 or 3 rows by 4."""
    own, common = minus(HERE, A, None), minus(HERE, B, None)
    found = variate(toys.ctx(AROUND, home), C, replace(D, weight=7.0), common, own, SPEC)
    expected = A.trainable - B.trainable + (C.trainable - D.trainable) / (steps * 0.5)
    assert only_trained(found["own"], expected)
    assert only_trained(found["delta"], expected - A.trainable)
    assert found["delta"].weight == 7.0
    first = variate(toys.ctx(AROUND, home), C, D, common, None, SPEC)
    assert only_trained(first["own"], expected - A.trainable)
    again = rebuilt(HERE, {home: replace(D, weight=7.0)}, C, common, 0.5, {home: steps})
    assert only_trained(again, 7.0 * found["delta"].trainable)


def test_variate_of_a_client_that_took_no_step() -> None:
    """It stays what it was, also where the server works it out: nothing is divided by zero."""
    spec, own = replace(SPEC, batch=4, drop_last=True), minus(HERE, A, None)
    found = variate(toys.ctx(AROUND, "c1"), C, C, minus(HERE, B, None), own, spec)
    assert torch.equal(found["own"].vector, own.vector)
    assert not found["delta"].vector.any()
    assert not rebuilt(HERE, {"c1": C}, C, B, 0.5, {"c1": 0}).vector.any()


def test_variate_by_gradient() -> None:
    found = variate(HERE, START, D, B, A, SPEC, gradient=True)
    assert torch.equal(found["own"].vector, gradient_at(HERE, START, SPEC).vector)


def test_dual_and_server() -> None:
    own = minus(HERE, A, None)
    assert only_trained(dual(HERE, B, C, own, 0.2)["own"], A.trainable - 0.2 * (C.trainable - B.trainable))
    assert dual(HERE, B, C, None, 0.2)["model"] is C
    mean = replace(C, weight=3.0)  # three of five came
    found = dynamic_server(HERE, B, mean, own, 0.2, 5)
    h = A.trainable - 0.2 * 0.6 * (C.trainable - B.trainable)
    assert only_trained(found["h"], h)
    assert toys.gap(found["model"].trainable, C.trainable - h / 0.2) <= 1e-12
    assert torch.equal(found["model"].vector[SIZE:], C.vector[SIZE:])


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_torchs(nesterov: bool) -> None:
    """Over four rounds it is torch's SGD with lr 1 on the pseudo-gradient; statistics are the mean's."""
    weights = A.trainable.clone().requires_grad_()
    optimiser = torch.optim.SGD([weights], lr=1.0, momentum=0.7, nesterov=nesterov)
    model, velocity = A, None
    for seed in range(4):
        mean = drawn(10 + seed)
        weights.grad = weights.detach() - mean.trainable
        optimiser.step()
        found = momentum_step(HERE, model, mean, velocity, 0.7, 1.0, nesterov)
        model, velocity = found["model"], found["velocity"]
        assert toys.gap(model.trainable, weights.detach()) <= 1e-10
        assert torch.equal(model.vector[SIZE:], mean.vector[SIZE:])
        assert not velocity.vector[SIZE:].any()


def test_alike() -> None:
    """2 epochs of ceil(mean 6.5 / 4) = 2 steps; steps that were given stay."""
    assert (alike(SPEC, [10, 3]).steps, alike(SPEC, [10, 3]).epochs) == (4, None)
    given = LocalSpec(steps=7)
    assert alike(given, [10, 3]) is given


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"optimizer": "adam"}, "local.optimizer = 'adam'"),
        ({"optimizer": "adamw"}, "local.optimizer = 'adamw'"),
        ({"momentum": 0.9}, "local.momentum = 0.9"),
        ({"lr_time_decay": 0.1}, "local.lr_time_decay = 0.1"),
        ({"low_bit": "feedback"}, "local.low_bit = 'feedback'"),
    ],
)
def test_paths_that_do_not_tell_gradients(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_path(LocalSpec(epochs=1, **options), "MTGC")
    check_path(LocalSpec(epochs=1, clip=10.0, weight_decay=0.1), "MTGC")


@pytest.mark.parametrize("options", [{"epochs": 1, "drop_last": True}, {"epochs": 0}, {"steps": 0}])
def test_unequal_or_no_steps(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the same number of steps"):
        check_steps(LocalSpec(**options), "MTGC")


def test_batch_norm_is_spoken_of() -> None:
    shape, custom = (3, 8, 8), {"builder": toys.normed}
    assert buffers_caution(ModelSpec("cnn", shape, 3, {"norm": "group"})) == ()
    (sentence,) = buffers_caution(ModelSpec("cnn", shape, 3, {"norm": "batch"}))
    assert "'cnn' has batch norm" in sentence
    assert "model.norm = 'group'" in sentence
    assert len(buffers_caution(ModelSpec("custom", (3,), 3, **custom))) == 1
