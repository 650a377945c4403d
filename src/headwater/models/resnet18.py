"""ResNet-18, with the stem of ImageNet or one for small images."""

from __future__ import annotations

from torch import nn

from headwater.models import ModelInfo
from headwater.models.base import Net, Norm, Shape, choose, feature_layer, image_shape, normalise
from headwater.models.resnet import Block, draw

WIDTHS = (64, 128, 256, 512)


@ModelInfo("resnet18", "residual net of 11 million numbers (stem, features, norm, groups)")
def resnet18(
    shape: Shape, classes: int, *, stem: str = "imagenet", features: int = 0, norm: Norm = "batch", groups: int = 2
) -> Net:
    """Four stages of two residual blocks after a stem, mean over pixels, classifier.

    11 209 994 parameters with 64 features and 10 classes, as in FedHKD.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
        stem: "imagenet" halves the image twice (7 x 7 convolution and max-pool); "small" is one 3 x 3 convolution.
        features: outputs of a linear layer before the classifier; 0 for no such layer.
        norm: "batch" or "group".
        groups: of group norm.
    """
    choose("resnet18", "stem", stem, ("imagenet", "small"))
    choose("resnet18", "norm", norm, ("batch", "group"))
    channels, _, _ = image_shape("resnet18", shape, 8)
    for_large_images = stem == "imagenet"
    size, stride = (7, 2) if for_large_images else (3, 1)
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, size, stride=stride, padding=size // 2, bias=False)]
    layers += [
        normalise(norm, 64, groups),
        nn.ReLU(),
        *([nn.MaxPool2d(3, stride=2, padding=1)] if for_large_images else []),
    ]
    before = 64
    for width in WIDTHS:
        layers += [Block(before, width, "projection", norm, groups), Block(width, width, "projection", norm, groups)]
        before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *feature_layer("resnet18", before, features)]
    net = Net(nn.Sequential(*layers), nn.Linear(features or before, classes))
    draw(net)
    return net
