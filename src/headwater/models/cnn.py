"""Small convolutional nets: one whose depth follows its list of widths and whose head follows the image, and MTGC's."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from headwater.errors import ConfigError
from headwater.models.base import Net, Norm, choose, image_shape, normalise, widths_of


def cnn(
    shape: tuple[int, ...],
    classes: int,
    *,
    widths: Sequence[int] = (32, 64),
    hidden: int = 64,
    norm: Norm = "batch",
    groups: int = 2,
) -> Net:
    """One block a width (3 x 3 convolution, norm, ReLU, halving max-pool), then one ReLU layer of `hidden` units.

    `hidden = 0` leaves that layer out: the features are then the last feature maps, flattened.
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
        # A bias straight before a norm would be cancelled by it, so only the norm-free net has one.
        layers += [nn.Conv2d(channels, size, 3, padding=1, bias=norm == "none"), normalise(norm, size, groups)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = size, height // 2, width // 2
    layers.append(nn.Flatten())
    features = channels * height * width
    if hidden:
        layers += [nn.Linear(features, hidden), nn.ReLU()]
        features = hidden
    return Net(nn.Sequential(*layers), nn.Linear(features, classes))


def mtgc_cnn(shape: tuple[int, ...], classes: int) -> Net:
    """Two 5 x 5 convolutions of 64 channels without padding, a halving max-pool after each, ReLU layers of 384 and 192.

    797 962 parameters with 3 channels of 32 x 32 px and 10 classes.
    """
    channels, height, width = image_shape("mtgc_cnn", shape, 16)
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Conv2d(channels, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = 64, (height - 4) // 2, (width - 4) // 2
    layers += [nn.Flatten(), nn.Linear(channels * height * width, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()]
    return Net(nn.Sequential(*layers), nn.Linear(192, classes))
