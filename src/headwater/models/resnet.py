"""ResNet-8 for small colour images, in the two forms that the papers' programs use.

| `shortcut`   | where the size changes                            | convolutions | weights    | parameters |
|--------------|---------------------------------------------------|--------------|------------|------------|
| `projection` | 1 x 1 convolution and norm (FedDF)                | without bias | by fan-out | 78 042     |
| `padding`    | every second pixel, zero channels added (FedHEAD) | with bias    | He normal  | 75 530     |

(parameters with 3 channels and 10 classes)
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from headwater.models.base import Net, Norm, choose, image_shape, normalise

WIDTHS = (16, 32, 64)


def resnet8(
    shape: tuple[int, ...],
    classes: int,
    *,
    shortcut: str = "projection",
    norm: Norm = "batch",
    groups: int = 2,
) -> Net:
    """A 3 x 3 convolution, three residual blocks of 16, 32 and 64 channels, mean over pixels, linear classifier."""
    choose("resnet8", "shortcut", shortcut, ("projection", "padding"))
    choose("resnet8", "norm", norm, ("batch", "group"))
    channels, _, _ = image_shape("resnet8", shape, 8)
    bias = shortcut == "padding"
    stem = [nn.Conv2d(channels, 16, 3, padding=1, bias=bias), normalise(norm, 16, groups), nn.ReLU()]
    blocks, before = [], 16
    for width in WIDTHS:
        blocks.append(Block(before, width, shortcut, norm, groups))
        before = width
    features = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = Net(features, nn.Linear(before, classes))
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_in" if bias else "fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear) and bias:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if isinstance(layer, (nn.Conv2d, nn.Linear)) and bias and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return net


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; a wider block also halves the image."""

    def __init__(self, before: int, width: int, shortcut: str, norm: Norm, groups: int) -> None:
        super().__init__()
        bias, stride = shortcut == "padding", 1 if before == width else 2
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
                nn.Conv2d(before, width, 1, stride=stride, bias=False), normalise(norm, width, groups)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class PaddedSubsample(nn.Module):
    """Every second pixel, with empty channels before and after (one more before when their number is odd)."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.before, self.after = extra - extra // 2, extra // 2

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))
