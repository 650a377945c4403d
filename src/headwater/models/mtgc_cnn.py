"""The convolutional network of MTGC."""

from __future__ import annotations

from torch import nn

from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, image_shape


@ModelInfo("mtgc_cnn", "two 5 x 5 convolutions and two ReLU layers, as in MTGC")
def mtgc_cnn(shape: Shape, classes: int) -> Net:
    """Two 5 x 5 convolutions of 64 channels without padding, a halving max-pool after each, ReLU layers of 384 and 192.

    797 962 parameters with 3 channels of 32 x 32 px and 10 classes.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
    """
    channels, height, width = image_shape("mtgc_cnn", shape, 16)
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Conv2d(channels, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = 64, (height - 4) // 2, (width - 4) // 2
    layers += [nn.Flatten(), nn.Linear(channels * height * width, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()]
    return Net(nn.Sequential(*layers), nn.Linear(192, classes))
