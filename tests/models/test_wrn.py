"""WRN-16-2."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwater.models.base import ModelSpec
from headwater.models.wrn import PreBlock

COLOUR = (3, 32, 32)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("classes", [10, 100])
def test_count_by_formula(norm: str, classes: int) -> None:
    """A norm before each convolution of a block and one at the end; 1 x 1 convolutions in all three stages."""
    total, before = 9 * 3 * 16, 16
    for width in (32, 64, 128):
        total += 2 * before + 9 * before * width + 2 * width + 9 * width * width + before * width
        total += 2 * width + 9 * width * width + 2 * width + 9 * width * width
        before = width
    total += 2 * before + before * classes + classes
    assert ModelSpec("wrn16_2", COLOUR, classes, {"norm": norm}).count() == total
    if classes == 10:
        assert total == 691_674


def test_depth() -> None:
    layers = ModelSpec("wrn16_2", COLOUR, 10).outline().modules()
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in layers) + 3 == 16, "shortcuts count as one"


def test_a_block_that_does_nothing_passes_its_input_as_it_is() -> None:
    """Nothing is activated after the sum, so what is negative stays so."""
    block = PreBlock(4, 4, 1, "batch", 2).eval()
    nn.init.zeros_(block.body[-1].weight)
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(block(x), x)


def test_a_widening_block_projects_what_was_activated() -> None:
    block = PreBlock(2, 4, 2, "batch", 2).eval()
    nn.init.zeros_(block.body[-1].weight)
    assert block.shortcut is not None
    x = torch.randn(2, 2, 6, 6)
    expected = F.conv2d(torch.relu(x / (1 + 1e-5) ** 0.5), block.shortcut.weight, stride=2)
    torch.testing.assert_close(block(x), expected)


def test_halves_twice() -> None:
    model = ModelSpec("wrn16_2", COLOUR, 10).outline()
    sides: list[int] = []
    for part in model.modules():
        if isinstance(part, PreBlock):
            part.register_forward_hook(lambda _, given, output: sides.append(output.shape[2]))
    model(torch.zeros(1, *COLOUR, device="meta"))
    assert sides == [32, 32, 16, 16, 8, 8]
