from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import toys
from headwater.core.params import Params
from headwater.specs import LocalSpec
from headwater.tasks.local import label_counts, local_train, own_rows, pooled
from headwater.tasks.terms import Proximal

ROWS = toys.blobs(10)
SPEC = LocalSpec(epochs=2, batch=4, lr=0.2)
AROUND = toys.context([ROWS, toys.blobs(4, seed=1)], toys.net, classes=3)
START = AROUND.initial(toys.ARCH, 0)


def train(spec: LocalSpec = SPEC, home: str = "c0", **options: object) -> Params:
    return local_train(toys.ctx(AROUND, home), START, spec, **options)


def test_equals_a_plain_loop() -> None:
    """The same batches, an ordinary module and torch's SGD."""
    module = START.load_into(toys.net())
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2)
    rng = toys.ctx(AROUND, "c0").rng
    for _ in range(2):
        for part in torch.from_numpy(rng.permutation(10)).split(4):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(ROWS.x[part]), ROWS.y[part]).backward()
            optimiser.step()
    assert toys.gap(train(), toys.params(module)) <= 1e-12


def test_weight_is_what_was_trained_on() -> None:
    assert train().weight == 10
    assert train(home="c1").weight == 4
    assert train(data=toys.blobs(3, seed=5)).weight == 3
    assert train(replace(SPEC, epochs=0)).weight == 10


def test_a_client_too_small_for_a_whole_batch_still_weighs() -> None:
    """With `drop_last` it does not train, yet counts with its samples, as in FedHEAD's code."""
    found = train(replace(SPEC, batch=11, drop_last=True))
    assert torch.equal(found.vector, START.vector)
    assert found.weight == 10


def test_no_steps_change_nothing() -> None:
    assert torch.equal(train(replace(SPEC, epochs=0)).vector, START.vector)


def test_the_start_is_left_alone() -> None:
    before = START.vector.clone()
    train()
    assert torch.equal(START.vector, before)


def test_a_fresh_optimiser_every_time() -> None:
    """Momentum of one call does not reach into the next."""
    spec = replace(SPEC, momentum=0.9)
    assert torch.equal(train(spec).vector, train(spec).vector)


def test_note_is_the_mean_loss_over_rows() -> None:
    """With a rate too small to matter it is the loss at the start, the small last batch not counted double."""
    at = toys.ctx(AROUND, "c0")
    local_train(at, START, LocalSpec(epochs=1, batch=4, lr=1e-12))
    expected = torch.nn.functional.cross_entropy(START.load_into(toys.net())(ROWS.x), ROWS.y)
    assert at.notes["loss"] == pytest.approx(float(expected.detach()), abs=1e-8)


class TestCorrections:
    STEPS = LocalSpec(steps=3, batch=99, lr=0.1)

    def test_none_counts_as_zero(self) -> None:
        plain = train(self.STEPS)
        assert torch.equal(train(self.STEPS, corrections=(None, None)).vector, plain.vector)
        zero = torch.zeros(START.layout.size, dtype=torch.float64)
        assert torch.equal(train(self.STEPS, corrections=(zero, None)).vector, plain.vector)

    def test_several_add_up(self) -> None:
        a, b = (
            torch.randn(START.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(s))
            for s in (1, 2)
        )
        both = train(self.STEPS, corrections=(a, None, b))
        assert toys.gap(both, train(self.STEPS, corrections=(a + b,))) <= 1e-12
        assert toys.gap(both, train(self.STEPS)) > 1e-2

    def test_on_a_flat_loss_it_is_the_whole_gradient(self) -> None:
        """At the bottom of a bowl without curvature w moves by −lr·c a step: three steps of 0.1 make −0.3·c."""
        around = toys.context([toys.bowl(np.zeros((2, 2)), [0, 0], 2)], toys.Bowl)
        start = around.initial(toys.ARCH, 0)
        c = torch.tensor([1.0, -4.0], dtype=torch.float64)
        found = local_train(toys.ctx(around), start, self.STEPS, corrections=(c,))
        assert toys.gap(found.vector, -0.3 * c) <= 1e-12

    def test_a_model_serves_as_one(self) -> None:
        """Of a model with buffers, the trainable part."""
        around = toys.context([toys.blobs(6, dtype=torch.float32)], toys.normed, classes=3)
        start = around.initial(toys.ARCH, 0)
        found = [
            local_train(toys.ctx(around), start, self.STEPS, corrections=(c,)).vector for c in (start, start.trainable)
        ]
        assert torch.equal(*found)


class TestProximal:
    def test_none_at_zero(self) -> None:
        assert toys.gap(train(terms=(Proximal(0.0),)), train()) <= 1e-12

    def test_gradient(self) -> None:
        """One step from elsewhere is not possible, so two: the second feels mu·(w − start).

        A = I, b = (1, 0), lr 0.5, mu 2. First: gradient (−1, 0), so (0.5, 0). Then (−0.5, 0) + 2·(0.5, 0) = (0.5, 0),
        so (0.25, 0).
        """
        around = toys.context([toys.bowl(np.eye(2), [1, 0], 1)], toys.Bowl)
        start = around.initial(toys.ARCH, 0)
        spec = LocalSpec(steps=2, batch=1, lr=0.5)
        found = local_train(toys.ctx(around), start, spec, terms=(Proximal(2.0),))
        assert found.vector.tolist() == pytest.approx([0.25, 0.0], abs=1e-12)

    def test_a_strong_pull_keeps_the_model_where_it_was(self) -> None:
        spec = LocalSpec(steps=200, batch=99, lr=1e-4)
        free, held = train(spec), train(spec, terms=(Proximal(5000.0),))
        assert toys.gap(held, START) < 0.1 * toys.gap(free, START)

    def test_is_not_part_of_the_noted_loss(self) -> None:
        first, second = toys.ctx(AROUND, "c0"), toys.ctx(AROUND, "c0")
        local_train(first, START, LocalSpec(epochs=1, batch=99, lr=0.1))
        local_train(second, START, LocalSpec(epochs=1, batch=99, lr=0.1), terms=(Proximal(10.0),))
        assert first.notes == second.notes


def test_label_counts() -> None:
    found = label_counts(toys.ctx(AROUND, "c0"))
    assert found.tolist() == [float((ROWS.y == c).sum()) for c in range(3)]
    assert found.nbytes == 8 * 3


def test_pooling_keeps_order() -> None:
    parts = {home: own_rows(toys.ctx(AROUND, home)) for home in ("c1", "c0")}
    together = pooled(toys.ctx(AROUND, "server"), parts)
    assert torch.equal(together.x, torch.cat([parts["c1"].x, parts["c0"].x]))
    assert torch.equal(together.y, torch.cat([parts["c1"].y, parts["c0"].y]))


def test_a_home_without_data() -> None:
    with pytest.raises(LookupError, match="s0 holds no training data"):
        train(home="s0")
