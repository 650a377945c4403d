"""The model: any `nn.Module` that returns one logit per class."""

from __future__ import annotations

from torch import nn

FEATURES, CLASSES = 4, 3  # the columns of numbers in measurements.csv, and the states


def net(hidden: int = 32) -> nn.Module:
    """Build the model. Its parameters are keys of [model] in experiment.toml.

    Args:
        hidden: width of the hidden layer.
    """
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
