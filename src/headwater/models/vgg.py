"""VGG-9, the network without normalisation of FedMA and FedDF."""

from __future__ import annotations

from torch import nn

from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, image_shape

STAGES = ((32, 64), (128, 128), (256, 256))
HIDDEN = (512, 512)


@ModelInfo("vgg9", "net of 9 layers without normalisation, for 8 px and more")
def vgg9(shape: Shape, classes: int) -> Net:
    """Six 3 x 3 convolutions, a halving max-pool after every second one, two ReLU layers, linear classifier.

    3 491 530 parameters with 3 channels of 32 x 32 px and 10 classes.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
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
