"""Perceptrons, and the linear model that is their smallest case."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from headwater.models.base import Net, flat_size, widths_of


def linear(shape: tuple[int, ...], classes: int) -> Net:
    """Softmax regression: the features are the input itself, flattened."""
    return Net(nn.Flatten(), nn.Linear(flat_size(shape), classes))


def mlp(shape: tuple[int, ...], classes: int, *, hidden: Sequence[int] = (200, 200)) -> Net:
    """ReLU layers of the given widths, without normalisation. `hidden = []` is the linear model."""
    layers: list[nn.Module] = [nn.Flatten()]
    size = flat_size(shape)
    for width in widths_of("mlp", "hidden", hidden):
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return Net(nn.Sequential(*layers), nn.Linear(size, classes))
