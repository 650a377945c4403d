"""Constants of batch norm, which differ between libraries."""

from __future__ import annotations

from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

BatchNormOf = Literal["torch", "keras"]
# By how much a batch changes the running statistics (Keras has 1 - 0.99), and what is added to a variance.
MOMENTUM, EPS = 0.01, 1e-3


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a model has a layer of batch norm."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def as_in_keras(module: nn.Module) -> nn.Module:
    """Give every batch norm of a model the constants of Keras. Returns the model."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.momentum, layer.eps = MOMENTUM, EPS
    return module
