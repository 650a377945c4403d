"""Residual networks of 6n + 2 layers for small images, in the two forms that the papers' code uses.

| `shortcut`   | where the size changes                            | convolutions | weights    | ResNet-8 |
|--------------|---------------------------------------------------|--------------|------------|----------|
| `projection` | 1 x 1 convolution and norm (FedDF)                | without bias | by fan-out | 78 042   |
| `padding`    | every second pixel, zero channels added (FedHEAD) | with bias    | He normal  | 75 530   |

(parameters with 3 channels and 10 classes). A block has two 3 x 3 convolutions. Without a norm all convolutions have a
bias, and each block starts as its shortcut alone, since activations of a deep net would grow without bound otherwise.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from headwater.errors import ConfigError
from headwater.models import ModelInfo
from headwater.models.base import Net, Norm, Shape, choose, image_shape, normalise

WIDTHS = (16, 32, 64)


@ModelInfo("resnet8", "residual net of 8 layers (shortcut, norm, groups, width)")
def resnet8(
    shape: Shape, classes: int, *, shortcut: str = "projection", norm: Norm = "batch", groups: int = 2, width: int = 1
) -> Net:
    """ResNet-8 for small images; options as for `_resnet`.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
        shortcut: "projection" or "padding"; see the table of this module.
        norm: "batch", "group" or "none".
        groups: of group norm.
        width: multiplies all channels.
    """
    return _resnet(8, shape, classes, shortcut, norm, groups, width)


@ModelInfo("resnet20", "residual net of 20 layers (shortcut, norm, groups, width)")
def resnet20(
    shape: Shape, classes: int, *, shortcut: str = "projection", norm: Norm = "batch", groups: int = 2, width: int = 1
) -> Net:
    """ResNet-20 for small images; options as for `_resnet`.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
        shortcut: "projection" or "padding"; see the table of this module.
        norm: "batch", "group" or "none".
        groups: of group norm.
        width: multiplies all channels.
    """
    return _resnet(20, shape, classes, shortcut, norm, groups, width)


@ModelInfo("resnet32", "residual net of 32 layers (shortcut, norm, groups, width)")
def resnet32(
    shape: Shape, classes: int, *, shortcut: str = "projection", norm: Norm = "batch", groups: int = 2, width: int = 1
) -> Net:
    """ResNet-32 for small images; options as for `_resnet`.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
        shortcut: "projection" or "padding"; see the table of this module.
        norm: "batch", "group" or "none".
        groups: of group norm.
        width: multiplies all channels.
    """
    return _resnet(32, shape, classes, shortcut, norm, groups, width)


@ModelInfo("resnet56", "residual net of 56 layers (shortcut, norm, groups, width)")
def resnet56(
    shape: Shape, classes: int, *, shortcut: str = "projection", norm: Norm = "batch", groups: int = 2, width: int = 1
) -> Net:
    """ResNet-56 for small images; options as for `_resnet`.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
        shortcut: "projection" or "padding"; see the table of this module.
        norm: "batch", "group" or "none".
        groups: of group norm.
        width: multiplies all channels.
    """
    return _resnet(56, shape, classes, shortcut, norm, groups, width)


def _resnet(depth: int, shape: Shape, classes: int, shortcut: str, norm: Norm, groups: int, width: int) -> Net:
    """A 3 x 3 convolution, three stages of 16, 32 and 64 channels (times `width`), mean over pixels, classifier.

    Args:
        depth: layers, 6n + 2.
        shape: (channels, height, width) of the images.
        classes: number of logits.
        shortcut: "projection" or "padding"; see the table above.
        norm: "batch", "group" or "none".
        groups: of group norm.
        width: multiplies all channels.
    """
    name = f"resnet{depth}"
    choose(name, "shortcut", shortcut, ("projection", "padding"))
    choose(name, "norm", norm, ("batch", "group", "none"))
    if type(width) is not int or width < 1:
        raise ConfigError(f"{name} takes width as a whole number of at least 1, which multiplies all, got {width}")
    channels, _, _ = image_shape(name, shape, 8)
    before = WIDTHS[0] * width
    stem = [nn.Conv2d(channels, before, 3, padding=1, bias=_biased(shortcut, norm)), normalise(norm, before, groups)]
    blocks = []
    for wide in WIDTHS:
        for _ in range((depth - 2) // 6):
            blocks.append(Block(before, wide * width, shortcut, norm, groups))
            before = wide * width
    features = nn.Sequential(*stem, nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = Net(features, nn.Linear(before, classes))
    draw(net, he=shortcut == "padding")
    return net


def draw(net: nn.Module, *, he: bool = False) -> None:
    """Initialise convolutions by fan-out; with `he`, also linear layers, all by fan-in, and biases with 0.

    Args:
        net: the model.
        he: initialisation of the form with padding.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_in" if he else "fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear) and he:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if isinstance(layer, (nn.Conv2d, nn.Linear) if he else nn.Conv2d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for block in net.modules():
        if isinstance(block, Block) and isinstance(block.body[-1], nn.Identity):
            nn.init.zeros_(block.body[-2].weight)  # type: ignore[arg-type]


class Block(nn.Module):
    """Two 3 x 3 convolutions with a shortcut. A block that widens also halves the image."""

    def __init__(self, before: int, width: int, shortcut: str, norm: Norm, groups: int) -> None:
        super().__init__()
        bias, stride = _biased(shortcut, norm), 1 if before == width else 2
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=bias),
            normalise(norm, width, groups),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=bias),
            normalise(norm, width, groups),
        )
        self.shortcut: nn.Module
        if before == width:
            self.shortcut = nn.Identity()
        elif shortcut == "padding":
            self.shortcut = PaddedSubsample(width - before)
        else:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride=stride, bias=norm == "none"), normalise(norm, width, groups)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class PaddedSubsample(nn.Module):
    """Every second pixel, with zero channels before and after (one more before if their number is odd)."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.before, self.after = extra - extra // 2, extra // 2

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


def _biased(shortcut: str, norm: Norm) -> bool:
    return shortcut == "padding" or norm == "none"
