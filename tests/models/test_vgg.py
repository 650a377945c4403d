"""VGG-9 as FedMA publishes it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwater.errors import ConfigError
from headwater.models.base import ModelSpec


def test_has_the_published_number_of_parameters() -> None:
    assert ModelSpec("vgg9", (3, 32, 32), 10).count() == 3_491_530


def test_layers_as_published() -> None:
    layers = list(ModelSpec("vgg9", (3, 32, 32), 10).outline().modules())
    assert [m.out_channels for m in layers if isinstance(m, nn.Conv2d)] == [32, 64, 128, 128, 256, 256]
    assert [(m.in_features, m.out_features) for m in layers if isinstance(m, nn.Linear)] == [
        (4096, 512),
        (512, 512),
        (512, 10),
    ]
    assert sum(isinstance(m, nn.MaxPool2d) for m in layers) == 3


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 9, 17)])
def test_follows_the_image(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert ModelSpec("vgg9", shape, 5).build()(torch.rand(2, *shape)).shape == (2, 5)


def test_refuses_small_images() -> None:
    with pytest.raises(ConfigError, match=r"vgg9 takes images .* at least 8 x 8"):
        ModelSpec("vgg9", (3, 7, 32), 10).build()
