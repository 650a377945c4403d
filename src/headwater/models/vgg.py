"""VGG-9, the net without normalisation that FedMA and FedDF use."""

from __future__ import annotations

from torch import nn

from headwater.models.base import Net, image_shape

STAGES = ((32, 64), (128, 128), (256, 256))
HIDDEN = (512, 512)


def vgg9(shape: tuple[int, ...], classes: int) -> Net:
    """Six 3 x 3 convolutions, a halving max-pool after every second one, two ReLU layers, linear classifier.

    3 491 530 parameters with 3 channels of 32 x 32 px and 10 classes.
    """
    channels, height, width = image_shape("vgg9", shape, 2 ** len(STAGES))
    layers: list[nn.Module] = []
    for stage in STAGES:
        for size in stage:
            layers += [nn.Conv2d(channels, size, 3, padding=1), nn.ReLU()]
            channels = size
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    features = channels * height * width
    for size in HIDDEN:
        layers += [nn.Linear(features, size), nn.ReLU()]
        features = size
    return Net(nn.Sequential(*layers), nn.Linear(features, classes))
