"""What the accounting of DP-SGD relies on: how much one row changes a sum, and how large the noise on it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwater.data.base import Examples
from headwater.specs import LocalSpec
from headwater.tasks.local import local_train
from headwater.tasks.privacy import SHRINK, Privacy
from headwater.tasks.row_gradients import bounded_sum, row_gradients
from toys import blobs, context, ctx, linear, net, params

ROUNDING = 1e-12  # of sums of a few float64


def flat(rows: Examples) -> Any:
    torch.manual_seed(3)
    model = params(net())
    return ctx(context([rows], net, classes=3)).flat_module(model)


def neighbours(rows: Examples, further: Examples) -> list[tuple[Tensor, Tensor]]:
    """The batch without each of its rows, and with each of the further ones."""
    keep = [[i for i in range(len(rows)) if i != out] for out in range(len(rows))]
    fewer = [(rows.x[kept], rows.y[kept]) for kept in keep]
    one = [further.take([i]) for i in range(len(further))]
    return fewer + [(torch.cat([rows.x, row.x]), torch.cat([rows.y, row.y])) for row in one]


@pytest.mark.parametrize("bound", [0.05, 0.7, 1.5])
def test_a_row_more_or_less_changes_the_sum_by_the_bound_at_most(bound: float) -> None:
    """All neighbours of a batch; rows with long gradients, with short ones, and with one that is not finite."""
    rows, further = blobs(6, 1), blobs(8, 2)
    rows.x[0] *= 1e6
    further.x[0] *= 1e-6
    further.x[1] = float("inf")
    module = flat(rows)
    whole = bounded_sum(module, rows.x, rows.y, bound)
    changes = [float((whole - bounded_sum(module, *each, bound)).norm()) for each in neighbours(rows, further)]
    assert len(changes) == 14
    assert max(changes) <= bound * (1 + ROUNDING)
    assert changes[0] == pytest.approx(bound * SHRINK)  # reached by the row of 1e6
    lengths = torch.cat(list(row_gradients(module, rows.x, rows.y))).norm(dim=1)
    assert changes[:6] == pytest.approx(lengths.clamp_max(bound).tolist(), rel=1e-4)


@pytest.mark.parametrize(("clip", "noise", "batch"), [(2.0, 3.0, 10), (0.5, 1.0, 4)])
def test_noise_has_the_deviation_that_clip_and_noise_say(clip: float, noise: float, batch: int) -> None:
    """Rows of zeros have no gradient at the weights of a linear layer, so that a step moves these by noise alone."""
    features, classes = 1000, 5
    zeros = Examples(torch.zeros(20, features, dtype=torch.float64), torch.arange(20) % classes)
    plain = context([zeros], lambda: linear(features, classes), classes=classes)
    around = replace(plain, privacy=Privacy(row_clip=clip, row_noise=noise))
    start = params(linear(features, classes))
    trained = local_train(ctx(around), start, LocalSpec(steps=1, batch=batch, lr=1.0, optimizer="sgd"))
    moved = (trained.vector - start.vector)[: features * classes]
    assert len(moved) == 5000
    assert float(moved.std()) == pytest.approx(noise * clip / batch, rel=0.05)
    assert abs(float(moved.mean())) < 5 * noise * clip / batch / len(moved) ** 0.5
