"""ShuffleNetV2 of width 1.0."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwater.models.base import ModelSpec
from headwater.models.shufflenet import ShuffleUnit

COLOUR = (3, 32, 32)


def layer(before: int, after: int, size: int) -> int:
    """A convolution without bias (`before` = 1: each channel by itself) and its norm."""
    return size * size * before * after + 2 * after


def body() -> int:
    total, before = layer(3, 24, 3), 24
    for width, units in ((116, 4), (232, 8), (464, 4)):
        half = width // 2
        total += layer(1, before, 3) + layer(before, half, 1)
        total += layer(before, half, 1) + layer(1, half, 3) + layer(half, half, 1)
        total += (units - 1) * (2 * layer(half, half, 1) + layer(1, half, 3))
        before = width
    return total + layer(before, 1024, 1)


@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_has_the_published_number_of_parameters(stem: str) -> None:
    found = ModelSpec("shufflenetv2", COLOUR, 10, {"features": 32, "stem": stem}).count()
    assert found == body() + 1024 * 32 + 32 + 32 * 10 + 10 == 1_286_734
    assert ModelSpec("shufflenetv2", COLOUR, 1000).count() == body() + 1024 * 1000 + 1000 == 2_278_604


def test_half_of_the_channels_pass_and_come_out_in_between() -> None:
    torch.manual_seed(0)
    unit = ShuffleUnit(8, 8).eval()
    x = torch.randn(2, 8, 4, 4)
    out = unit(x)
    assert torch.equal(out[:, ::2], x[:, :4])
    assert torch.equal(out[:, 1::2], unit.worked(x[:, 4:]))


def test_a_widening_unit_takes_all_channels_twice() -> None:
    torch.manual_seed(0)
    unit = ShuffleUnit(6, 8).eval()
    x = torch.randn(2, 6, 4, 4)
    out = unit(x)
    assert out.shape == (2, 8, 2, 2)
    assert torch.equal(out[:, ::2], unit.passed(x))
    assert torch.equal(out[:, 1::2], unit.worked(x))


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("small", 32)])
def test_what_the_stem_leaves_of_the_image(stem: str, side: int) -> None:
    model = ModelSpec("shufflenetv2", COLOUR, 10, {"stem": stem}).outline().eval()
    seen: list[int] = []
    first = next(m for m in model.modules() if isinstance(m, ShuffleUnit))
    first.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[2]))
    model(torch.zeros(1, *COLOUR, device="meta"))
    assert seen == [side]


@pytest.mark.thorough
def test_channels_last_changes_nothing() -> None:
    torch.manual_seed(0)
    model = ModelSpec("shufflenetv2", (3, 8, 8), 4).build().double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), model(x))


def test_few_channels_are_convolved_apart() -> None:
    layers = [m for m in ModelSpec("shufflenetv2", COLOUR, 10).outline().modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.groups == m.in_channels for m in layers) == 16 + 3
    assert all(m.bias is None for m in layers)
