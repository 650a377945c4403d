"""The three classes in the plane."""

from __future__ import annotations

import torch

from headwater.data.datasets.embedded import REACH, anywhere
from headwater.data.loading import load


def test_always_the_same_points() -> None:
    one, other = load("toy2d"), load("toy2d")
    assert torch.equal(one.train.x, other.train.x)
    assert not torch.equal(one.train.x[:900], one.test.x[:900])
    assert float(one.train.x.abs().max()) <= REACH


def test_each_class_lies_at_its_corner() -> None:
    """At 1.6 from the middle, a third of a turn apart, the first one straight up: 1.6 · (−½√3, −½) is the second."""
    found = load("toy2d")
    for part in (found.train, found.test):
        assert torch.bincount(part.y).tolist() == [len(part) // 3] * 3
        middles = torch.stack([part.x[part.y == label].mean(0) for label in range(3)])
        expected = torch.tensor([[0.0, 1.6], [-1.3856, -0.8], [1.3856, -0.8]])
        assert float((middles - expected).abs().max()) < 0.1


def test_anywhere_fills_the_picture_evenly() -> None:
    drawn = anywhere(8000, (2,), 3, 5)
    assert torch.equal(drawn, anywhere(8000, (2,), 3, 5))
    assert not torch.equal(drawn, anywhere(8000, (2,), 3, 6))
    cells = torch.bincount(((drawn + REACH) // 3 @ torch.tensor([1.0, 2.0])).long())
    assert cells.tolist() == [cell for cell in cells.tolist() if 1850 < cell < 2150]
    assert len(cells) == 4
