"""ShuffleNetV2 of width 1.0."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, choose, feature_layer, image_shape

STEM, LAST = 24, 1024
STAGES = ((116, 4), (232, 8), (464, 4))  # channels and units


@ModelInfo("shufflenetv2", "net with few multiplications, width 1.0 (stem, features)")
def shufflenetv2(shape: Shape, classes: int, *, stem: str = "imagenet", features: int = 0) -> Net:
    """Three stages of units that work on half of the channels and shuffle them, a 1 x 1 convolution, mean over pixels.

    1 286 734 parameters with 32 features and 10 classes, as in FedHKD.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
        stem: "imagenet" halves the image twice before the first unit; "small" does not.
        features: outputs of a linear layer before the classifier; 0 for no such layer.
    """
    choose("shufflenetv2", "stem", stem, ("imagenet", "small"))
    channels, _, _ = image_shape("shufflenetv2", shape, 8)
    for_large_images = stem == "imagenet"
    layers: list[nn.Module] = [*_convolved(channels, STEM, 3, 2 if for_large_images else 1), nn.ReLU()]
    layers += [nn.MaxPool2d(3, stride=2, padding=1)] if for_large_images else []
    before = STEM
    for width, count in STAGES:
        layers += [ShuffleUnit(before, width), *(ShuffleUnit(width, width) for _ in range(count - 1))]
        before = width
    layers += [*_convolved(before, LAST, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += feature_layer("shufflenetv2", LAST, features)
    return Net(nn.Sequential(*layers), nn.Linear(features or LAST, classes))


def _convolved(before: int, width: int, size: int, stride: int = 1, *, apart: bool = False) -> tuple[nn.Module, ...]:
    """A convolution and its norm; `apart`: depthwise, each channel by itself."""
    groups = before if apart else 1
    conv = nn.Conv2d(before, width, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(width)


class ShuffleUnit(nn.Module):
    """Half of the channels pass, the other half is convolved, then both are shuffled.

    A unit that widens convolves all channels on both branches and halves the image.
    """

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.widens, half = before != width, width // 2
        inner, stride = (before, 2) if self.widens else (half, 1)
        passed = [*_convolved(before, before, 3, 2, apart=True), *_convolved(before, half, 1), nn.ReLU()]
        self.passed = nn.Sequential(*passed) if self.widens else nn.Identity()
        self.worked = nn.Sequential(
            *_convolved(inner, half, 1),
            nn.ReLU(),
            *_convolved(half, half, 3, stride, apart=True),
            *_convolved(half, half, 1),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = (x, x) if self.widens else x.chunk(2, dim=1)
        return functional.channel_shuffle(torch.cat([self.passed(left), self.worked(right)], dim=1), 2)
