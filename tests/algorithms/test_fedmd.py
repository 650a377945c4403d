"""Agreement on public data: predictions, their mean, learning it by mean absolute error or by divergence (B12)."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from torch import Tensor

import toys
from headwater.algorithms.fedmd import Heed, Rows, about_public, digest, mean_of, predict, public
from headwater.core.params import Params
from headwater.data.base import Examples
from headwater.specs import LocalSpec
from headwater.tasks.local import Batch, local_train
from headwater.tasks.task import RunContext

REFERENCE = toys.blobs(11, seed=9).x
AROUND = toys.context([toys.blobs(8), toys.blobs(5, seed=1)], toys.net, classes=3, reference=REFERENCE)
MODEL = AROUND.initial(toys.ARCH, 0)
ALL = Rows(99)


def labelled() -> RunContext:
    around = toys.context([toys.blobs(8)], toys.net, classes=3, reference=REFERENCE)
    around.split = replace(around.split, reference_labels=toys.blobs(11, seed=9).y)
    return around


# -- which rows


def test_rows_are_the_same_for_everybody_and_others_for_another_number() -> None:
    three = [Rows(3, number).of(REFERENCE) for number in (4, 4, 5)]
    assert torch.equal(three[0], three[1])
    assert not torch.equal(three[0], three[2])
    assert all(any(torch.equal(row, other) for other in REFERENCE) for row in three[2])


def test_rows_are_never_more_than_there_are_and_never_twice() -> None:
    found = ALL.of(REFERENCE)
    assert sorted(found.tolist()) == sorted(REFERENCE.tolist())
    assert torch.equal(Rows(4).of(REFERENCE), found[:4])
    assert torch.equal(ALL.of(Examples(REFERENCE, torch.zeros(11, dtype=torch.int64))), found)


def test_public_set_comes_with_labels_where_there_are_any() -> None:
    at = toys.ctx(AROUND, "server")
    assert about_public(at) == (11, False, 0)
    assert torch.equal(public(at), REFERENCE)
    at = toys.ctx(labelled(), "server")
    assert about_public(at) == (11, True, 0)
    found = public(at)
    assert isinstance(found, Examples)
    assert torch.equal(found.y, toys.blobs(11, seed=9).y)


# -- predictions and their mean


def test_predictions() -> None:
    """Logits as they are, or softened: at ½ twice as far apart."""
    with torch.no_grad():
        logits = MODEL.load_into(toys.net())(Rows(5).of(REFERENCE))
    at = toys.ctx(AROUND)
    assert toys.gap(predict(at, MODEL, REFERENCE, Rows(5)), logits) <= 1e-12
    soft = predict(at, MODEL, REFERENCE, Rows(5), temperature=0.5)
    assert toys.gap(soft, torch.softmax(2 * logits, dim=1)) <= 1e-12


def test_mean_counts_clients_alike_also_by_way_of_parts() -> None:
    at = toys.ctx(AROUND, "server")
    made = {f"c{i}": torch.full((2, 3), float(10**i), dtype=torch.float64) for i in range(5)}
    whole, number = mean_of(at, made)
    assert number == 5
    assert toys.gap(whole, torch.full((2, 3), 11111 / 5, dtype=torch.float64)) <= 1e-10
    for cut in (1, 2, 4):
        names = list(made)
        halves = {
            "s0": mean_of(at, {n: made[n] for n in names[:cut]}),
            "s1": mean_of(at, {n: made[n] for n in names[cut:]}),
        }
        mean, number = mean_of(at, halves)
        assert toys.gap(mean, whole) <= 1e-10
        assert number == 5


# -- digest

SLOPES = toys.context([toys.points((1, 0))], lambda: toys.Slopes((1.0, -1.0)))


def test_digest_by_hand() -> None:
    """Logits (x, −x) for x = 1 and 3, targets (0, 0) and (5, −3): errors (1, −1) and (−2, 0).

    Slopes of |e|/4: in w_0 (1 − 3)/4 = −½, in w_1 −1/4 (an error of 0 has none). A step of 2 gives (2, −½).
    """
    x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    order = ALL.of(x)
    target = torch.tensor([[0.0, 0.0] if row == 1 else [5.0, -3.0] for row in order], dtype=torch.float64)
    start = SLOPES.initial(toys.ARCH, 0)
    spec = LocalSpec(steps=1, batch=2, lr=2.0)
    at = toys.ctx(SLOPES)
    found = digest(at, start, x, target, ALL, spec)
    assert found.vector.tolist() == pytest.approx([2.0, -0.5], abs=1e-12)
    assert found.weight == start.weight
    assert at.notes["digest_loss"] == pytest.approx((1 + 1 + 2 + 0) / 4, abs=1e-12)


def test_b12_digesting_the_own_word_changes_nothing() -> None:
    """B12: the gradient is exactly 0, so any optimiser stays."""
    target = predict(toys.ctx(AROUND), MODEL, REFERENCE, ALL)
    for optimizer in ("sgd", "adam"):
        spec = LocalSpec(epochs=2, batch=99, optimizer=optimizer, lr=0.1)
        assert toys.gap(digest(toys.ctx(AROUND), MODEL, REFERENCE, target, ALL, spec), MODEL) <= 1e-12


def test_digest_comes_nearer_and_does_nothing_without_a_target() -> None:
    other = predict(toys.ctx(AROUND), AROUND.initial(toys.ARCH, 1), REFERENCE, ALL)
    spec = LocalSpec(epochs=60, batch=4, optimizer="adam", lr=0.02)
    taught = digest(toys.ctx(AROUND), MODEL, REFERENCE, other, ALL, spec)
    before, after = (
        float((predict(toys.ctx(AROUND), m, REFERENCE, ALL) - other).abs().mean()) for m in (MODEL, taught)
    )
    assert after < 0.3 * before
    assert digest(toys.ctx(AROUND), MODEL, REFERENCE, None, ALL, spec) is MODEL


# -- as a part of the loss


def slope_of(term: Heed, around: RunContext, model: Params) -> tuple[float, Tensor]:
    at = toys.ctx(around)
    started, flat = term.begin(at, model), at.flat_module(model)
    assert at.data is not None
    x, y = at.data.x, at.data.y
    output = flat(x)
    step = Batch(at, flat, model, x, y, output, flat.loss(output, y), torch.arange(len(y)))
    value = started(step)
    flat.grad.zero_()
    value.backward()
    return float(value.detach()), flat.grad.clone()


def test_heed_by_hand() -> None:
    """Slopes (1, −1)·ln 2/4 at x = 1, T = ½: the student says (⅔, ⅓), the target is (⅓, ⅔): KL = ln 2 / 3.

    The slope in w_0 is (⅔ − ⅓)·x/T = ⅔, in w_1 the opposite; all times 3.
    """
    around = toys.context([toys.points((1, 0))], lambda: toys.Slopes((log(2) / 4, -log(2) / 4)))
    x = torch.tensor([[1.0]], dtype=torch.float64)
    target = torch.tensor([[1 / 3, 2 / 3]], dtype=torch.float64)
    value, gradient = slope_of(Heed(3.0, x, target, ALL, batch=4), around, around.initial(toys.ARCH, 0))
    assert value == pytest.approx(log(2), abs=1e-12)
    assert gradient.tolist() == pytest.approx([2.0, -2.0], abs=1e-12)


def test_heed_differences() -> None:
    target = torch.softmax(torch.randn(11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3)), dim=1)
    term = Heed(0.7, REFERENCE, target, ALL, batch=5)
    _, gradient = slope_of(term, AROUND, MODEL)
    found = []
    for i in range(MODEL.layout.size):
        moved = torch.zeros_like(MODEL.vector)
        moved[i] = 1e-6
        up, down = (slope_of(term, AROUND, replace(MODEL, vector=MODEL.vector + s * moved))[0] for s in (1, -1))
        found.append((up - down) / 2e-6)
    assert toys.gap(gradient, torch.tensor(found, dtype=torch.float64)) <= 1e-7
    assert gradient.norm() > 1e-2


def test_heed_takes_the_next_public_batch_at_every_step_and_begins_again() -> None:
    """11 rows by 4: batches of 4, 4 and 3, then the first again."""
    at = toys.ctx(AROUND)
    target = predict(at, AROUND.initial(toys.ARCH, 1), REFERENCE, ALL, temperature=0.5)
    term = Heed(1.0, REFERENCE, target, ALL, batch=4).begin(at, MODEL)
    flat = at.flat_module(MODEL)
    assert at.data is not None
    output = flat(at.data.x)
    step = Batch(at, flat, MODEL, at.data.x, at.data.y, output, flat.loss(output, at.data.y), torch.arange(8))
    values = [float(term(step).detach()) for _ in range(4)]
    assert values[3] == pytest.approx(values[0], abs=1e-12)
    assert len({round(v, 9) for v in values[:3]}) == 3


def test_heed_without_a_target_is_plain_training() -> None:
    spec = LocalSpec(epochs=2, batch=3, lr=0.2)
    plain = local_train(toys.ctx(AROUND), MODEL, spec)
    assert (
        toys.gap(local_train(toys.ctx(AROUND), MODEL, spec, terms=(Heed(1.0, REFERENCE, None, ALL, 4),)), plain)
        <= 1e-12
    )


def test_heed_with_batch_norm_and_a_public_batch_of_one() -> None:
    """A last public batch of one row must not upset batch norm."""
    rows = toys.blobs(8, dtype=torch.float32)
    around = toys.context([rows], toys.normed, classes=3)
    x = REFERENCE.float()[:5]
    target = torch.full((5, 3), 1 / 3)
    spec = LocalSpec(epochs=2, batch=4, lr=0.1)
    term = Heed(1.0, x, target, ALL, batch=4)
    found = local_train(toys.ctx(around), around.initial(toys.ARCH, 0), spec, terms=(term,))
    assert torch.isfinite(found.vector).all()
