"""Gradients of single rows: by hand, equal to one row after another, and a step of DP-SGD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from headwater.errors import ConfigError
from headwater.specs import LocalSpec
from headwater.tasks.local import local_train
from headwater.tasks.privacy import Privacy
from headwater.tasks.row_gradients import _batched, _one, bounded_sum, row_gradients
from headwater.tasks.terms import Contrast, Proximal
from toys import Slopes, blobs, context, ctx, net, params, points

ROWS = points((1.0, 0), (-2.0, 1), (3.0, 0))


def slopes(start: tuple[float, float] = (0.0, 0.0)) -> Any:
    return lambda: Slopes(start)


def by_hand(rows: Any = ROWS) -> torch.Tensor:
    """At w = (0, 0) both classes have probability ½: the gradient is (p − 1[y = 0], p − 1[y = 1]) · x."""
    pairs = zip(rows.x.flatten().tolist(), rows.y.tolist(), strict=True)
    return torch.tensor([[x * (0.5 - (y == 0)), x * (0.5 - (y == 1))] for x, y in pairs], dtype=torch.float64)


def test_two_parameters_by_hand() -> None:
    around = ctx(context([ROWS], slopes()))
    flat = around.flat_module(params(Slopes()))
    (found,) = row_gradients(flat, ROWS.x, ROWS.y)
    assert found == pytest.approx(by_hand())
    # Lengths are √½ · |x|: 0.707, 1.414 and 2.121. With the bound 1 the last two are shortened.
    lengths = by_hand().norm(dim=1, keepdim=True)
    expected = (by_hand() / lengths.clamp_min(1.0)).sum(0)
    assert bounded_sum(flat, ROWS.x, ROWS.y, 1.0) == pytest.approx(expected, rel=1e-5)
    assert bounded_sum(flat, ROWS.x[:0], ROWS.y[:0], 1.0).tolist() == [0.0, 0.0]


def test_all_rows_at_once_are_as_one_after_another() -> None:
    rows = blobs(7, 0, features=3, classes=3)
    around = ctx(context([rows], net, classes=3))
    flat = around.flat_module(params(net()))
    (found,) = row_gradients(flat, rows.x, rows.y)
    each = torch.stack([_one(flat, rows.x[i : i + 1], rows.y[i : i + 1]) for i in range(7)])
    assert torch.allclose(found, each, atol=1e-12)  # gradients that are written out
    assert torch.allclose(_batched(flat, rows.x, rows.y), each, atol=1e-12)  # by torch's vmap
    assert float(bounded_sum(flat, rows.x, rows.y, 0.01).norm()) <= 7 * 0.01 * (1 + 1e-5)


def test_a_broken_row_counts_as_nothing() -> None:
    around = ctx(context([ROWS], slopes()))
    flat = around.flat_module(params(Slopes()))
    x = ROWS.x.clone()
    x[1] = float("nan")
    kept = torch.tensor([0, 2])
    assert torch.equal(bounded_sum(flat, x, ROWS.y, 1e9), bounded_sum(flat, ROWS.x[kept], ROWS.y[kept], 1e9))


def test_a_step_by_hand() -> None:
    """With the batch as large as the data every row is drawn, and without noise the step is plain descent."""
    around = replace(context([ROWS], slopes()), privacy=Privacy(row_clip=1.0))
    spec = LocalSpec(steps=1, batch=3, lr=0.5)
    moved = local_train(ctx(around), params(Slopes()), spec)
    expected = -0.5 / 3 * (by_hand() / by_hand().norm(dim=1, keepdim=True).clamp_min(1.0)).sum(0)
    assert moved.vector == pytest.approx(expected, rel=1e-5)
    wide = replace(around, privacy=Privacy(row_clip=1e9))
    plain = local_train(ctx(context([ROWS], slopes())), params(Slopes()), spec)
    assert torch.allclose(local_train(ctx(wide), params(Slopes()), spec).vector, plain.vector)


def test_proximal_pulls_are_added_without_noise() -> None:
    rows, spec = points((0.0, 0)), LocalSpec(steps=2, batch=1, lr=0.5)
    correction = torch.tensor([1.0, 0.0], dtype=torch.float64)
    around = replace(context([rows], slopes()), privacy=Privacy(row_clip=1.0))
    found = local_train(ctx(around), params(Slopes()), spec, corrections=(correction,), terms=(Proximal(1.0),))
    # The row has no gradient. Steps: −0.5, then −0.5 − 0.5 · (1 − 0.5).
    assert found.vector.tolist() == [-0.75, 0.0]


def test_noise_has_the_configured_size_and_no_loss_is_told() -> None:
    rows = points(*[(0.0, 0)] * 50)  # without gradients: only noise is left
    around = replace(context([rows], slopes()), privacy=Privacy(row_clip=2.0, row_noise=3.0))
    spec = LocalSpec(steps=100, batch=10, lr=1.0)
    found = local_train(ctx(around), params(Slopes()), spec)
    # 100 steps of noise 3 · 2 / 10 on each of two weights; only two numbers, so the bound is wide.
    assert 0.1 < float(found.vector.norm()) / (0.6 * 100**0.5 * 2**0.5) < 3
    told = ctx(around)
    local_train(told, params(Slopes()), spec)
    assert told.notes == {}


def test_a_loss_of_whole_batches_is_refused() -> None:
    around = replace(context([ROWS], slopes()), privacy=Privacy(row_clip=1.0))
    with pytest.raises(ConfigError, match="Contrast of this method's loss looks at whole batches"):
        local_train(ctx(around), params(Slopes()), LocalSpec(steps=1), terms=(Contrast(1.0, 0.5),))
