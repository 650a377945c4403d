"""WRN-16-2: a wide residual network whose blocks normalise and activate before they convolve."""

from __future__ import annotations

from torch import Tensor, nn

from headwater.models import ModelInfo
from headwater.models.base import Net, Norm, Shape, choose, image_shape, normalise
from headwater.models.resnet import draw

STEM, WIDTHS, BLOCKS = 16, (32, 64, 128), 2


@ModelInfo("wrn16_2", "wide residual net of 16 layers (norm, groups)")
def wrn16_2(shape: Shape, classes: int, *, norm: Norm = "batch", groups: int = 2) -> Net:
    """A 3 x 3 convolution, three stages of two blocks with 32, 64 and 128 channels, norm, ReLU, mean over pixels.

    691 674 parameters with 3 channels and 10 classes.

    Args:
        shape: (channels, height, width) of the images.
        classes: number of logits.
        norm: "batch" or "group".
        groups: of group norm.
    """
    choose("wrn16_2", "norm", norm, ("batch", "group"))
    channels, _, _ = image_shape("wrn16_2", shape, 8)
    layers: list[nn.Module] = [nn.Conv2d(channels, STEM, 3, padding=1, bias=False)]
    before = STEM
    for stage, width in enumerate(WIDTHS):
        for number in range(BLOCKS):
            layers.append(PreBlock(before, width, 2 if stage and not number else 1, norm, groups))
            before = width
    layers += [normalise(norm, before, groups), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = Net(nn.Sequential(*layers), nn.Linear(before, classes))
    draw(net)
    return net


class PreBlock(nn.Module):
    """Norm and ReLU, then two 3 x 3 convolutions, with a shortcut.

    The shortcut is the input or, if the width changes, a 1 x 1 convolution of the activated input.
    """

    def __init__(self, before: int, width: int, stride: int, norm: Norm, groups: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(normalise(norm, before, groups), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False),
            normalise(norm, width, groups),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )
        widens = before != width
        self.shortcut = nn.Conv2d(before, width, 1, stride=stride, bias=False) if widens else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.enter(x)
        out: Tensor = self.body(active) + (x if self.shortcut is None else self.shortcut(active))
        return out
