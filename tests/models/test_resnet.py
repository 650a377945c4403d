"""ResNet-8 in both published forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headwater.models.base import ModelSpec
from headwater.models.resnet import PaddedSubsample

COLOUR = (3, 32, 32)


@pytest.mark.parametrize(("shortcut", "count"), [("projection", 78_042), ("padding", 75_530)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_has_the_published_number_of_parameters(shortcut: str, count: int, norm: str) -> None:
    assert ModelSpec("resnet8", COLOUR, 10, {"shortcut": shortcut, "norm": norm}).count() == count


def test_projection_is_the_default() -> None:
    assert ModelSpec("resnet8", COLOUR, 10).count() == 78_042


def test_group_norm_replaces_every_batch_norm() -> None:
    layers = list(ModelSpec("resnet8", COLOUR, 10, {"norm": "group", "groups": 4}).outline().modules())
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in layers)
    assert [layer.num_groups for layer in layers if isinstance(layer, nn.GroupNorm)] == [4] * 9


def test_with_group_norm_a_sample_does_not_see_its_batch() -> None:
    torch.manual_seed(0)
    model = ModelSpec("resnet8", COLOUR, 10, {"norm": "group"}).build().train()
    x = torch.rand(4, *COLOUR)
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


def test_padded_subsample_by_hand() -> None:
    """Three new channels: two before, one after; pixels 0 and 2 of each row stay."""
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    out = PaddedSubsample(3)(x)
    assert out.shape == (1, 4, 2, 2)
    assert out[0, 2].tolist() == [[0.0, 2.0], [6.0, 8.0]]
    assert out[0, [0, 1, 3]].abs().sum() == 0


def test_padding_form_starts_he_normal_with_zero_biases() -> None:
    torch.manual_seed(0)
    model = ModelSpec("resnet8", COLOUR, 10, {"shortcut": "padding"}).build()
    last = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)][-1]
    assert last.bias is not None
    assert float(last.bias.detach().abs().sum()) == 0
    assert float(last.weight.detach().std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)


def test_projection_form_starts_by_fan_out() -> None:
    torch.manual_seed(0)
    model = ModelSpec("resnet8", COLOUR, 10).build()
    widening = next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d) and layer.out_channels == 64)
    assert widening.bias is None
    assert float(widening.weight.detach().std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)
