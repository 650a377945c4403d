"""Small convolutional network; its depth is the number of widths."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from headwater.errors import ConfigError
from headwater.models import ModelInfo
from headwater.models.base import Net, Norm, Shape, choose, image_shape, normalise, widths_of


@ModelInfo("cnn", "small convolutional net for 8 to 32 px (widths, hidden, norm, groups)")
def cnn(
    shape: Shape,
    classes: int,
    *,
    widths: Sequence[int] = (32, 64),
    hidden: int = 64,
    norm: Norm = "batch",
    groups: int = 2,
) -> Net:
    """Blocks of 3 x 3 convolution, norm, ReLU and halving max-pool, then one ReLU layer.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
        widths: channels by block.
        hidden: units of the ReLU layer; 0 leaves it out, so that the features are the flattened feature maps.
        norm: "batch", "group" or "none".
        groups: of group norm.
    """
    choose("cnn", "norm", norm, ("batch", "group", "none"))
    sizes = widths_of("cnn", "widths", widths)
    if not sizes:
        raise ConfigError("cnn needs at least one width, got an empty list; use 'linear' or 'mlp' for no convolution")
    if type(hidden) is not int or hidden < 0:
        raise ConfigError(f"cnn takes hidden as a whole number, 0 for none, got {hidden!r}")
    channels, height, width = image_shape("cnn", shape, 2 ** len(sizes))
    layers: list[nn.Module] = []
    for size in sizes:
        # A norm would cancel a bias before it, so only the net without norm has one.
        layers += [nn.Conv2d(channels, size, 3, padding=1, bias=norm == "none"), normalise(norm, size, groups)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = size, height // 2, width // 2
    layers.append(nn.Flatten())
    features = channels * height * width
    if hidden:
        layers += [nn.Linear(features, hidden), nn.ReLU()]
        features = hidden
    return Net(nn.Sequential(*layers), nn.Linear(features, classes))
