"""Perceptrons, and softmax regression as the case without a hidden layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from headwater.models import ModelInfo
from headwater.models.base import Net, Shape, widths_of


@ModelInfo("linear", "softmax regression on the flattened input")
def linear(shape: Shape, classes: int) -> Net:
    """Softmax regression: the features are the input itself, flattened.

    Args:
        shape: of one input.
        classes: number of logits.
    """
    return Net(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@ModelInfo("mlp", "perceptron with ReLU layers (hidden)")
def mlp(shape: Shape, classes: int, *, hidden: Sequence[int] = (200, 200)) -> Net:
    """ReLU layers of the given widths, without normalisation.

    Args:
        shape: of one input, which is flattened.
        classes: number of logits.
        hidden: widths of the layers; an empty list is the linear model.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    size = math.prod(shape)
    for width in widths_of("mlp", "hidden", hidden):
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return Net(nn.Sequential(*layers), nn.Linear(size, classes))
