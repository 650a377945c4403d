"""The nets of the comparison, written out so that a contestant needs torch and nothing else.

Names and weights are those of the library's own models, so that every contestant starts at the same numbers.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval


def build(model: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    if model["name"] == "mlp":
        return mlp(shape, classes, model["hidden"])
    if model["name"] == "cnn":
        return cnn(shape, classes, model["widths"])
    return resnet8(shape, classes, model.get("norm", "batch"))


class Net(nn.Module):
    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features, self.classifier = features, classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def mlp(shape: tuple[int, ...], classes: int, hidden: list[int]) -> Net:
    layers: list[nn.Module] = [nn.Flatten()]
    size = int(torch.Size(shape).numel())
    for width in hidden:
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return Net(nn.Sequential(*layers), nn.Linear(size, classes))


def cnn(shape: tuple[int, ...], classes: int, widths: list[int]) -> Net:
    """Without a norm and without a hidden layer."""
    layers: list[nn.Module] = []
    channels, height, width = shape
    for size in widths:  # the library has its norm at the second place
        layers += [nn.Conv2d(channels, size, 3, padding=1), nn.Identity(), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = size, height // 2, width // 2
    return Net(nn.Sequential(*layers, nn.Flatten()), nn.Linear(channels * height * width, classes))


def resnet8(shape: tuple[int, ...], classes: int, norm: str) -> Net:
    def normed(width: int) -> nn.Module:
        return nn.BatchNorm2d(width) if norm == "batch" else nn.GroupNorm(2, width)

    class Block(nn.Module):
        def __init__(self, before: int, width: int) -> None:
            super().__init__()
            stride = 1 if before == width else 2
            self.body = nn.Sequential(
                nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False),
                normed(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                normed(width),
            )
            self.shortcut: nn.Module = nn.Identity()
            if before != width:
                self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride=stride, bias=False), normed(width))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.body(x) + self.shortcut(x))

    stem = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), normed(16), nn.ReLU()]
    blocks = [Block(16, 16), Block(16, 32), Block(32, 64)]
    return Net(nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(64, classes))


def folded(net: nn.Module) -> nn.Module:
    """A copy for evaluation, with each batch norm in the convolution before it."""
    net = copy.deepcopy(net)
    for row in [part for part in net.modules() if isinstance(part, nn.Sequential)]:
        for (at, conv), (after, norm) in pairwise(list(row.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(row, at, fuse_conv_bn_eval(conv, norm))
                setattr(row, after, nn.Identity())
    return net
