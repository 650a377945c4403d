"""The generator of FedGen: a small network that the server trains to generate features of a class."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Generator(nn.Module):
    """(noise, one-hot class) → linear → batch norm → ReLU → linear → features.

    The buffer `held` marks the classes that it was trained for, and is sent with the weights.

    Args:
        noise: width of the noise.
        classes: number of classes.
        hidden: width of the hidden layer.
        width: number of features.
        dtype: of all parameters.
    """

    held: Tensor

    def __init__(self, noise: int, classes: int, hidden: int, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.noise, self.classes = noise, classes
        self.layers = nn.Sequential(
            nn.Linear(noise + classes, hidden, dtype=dtype),
            nn.BatchNorm1d(hidden, dtype=dtype),
            nn.ReLU(),
            nn.Linear(hidden, width, dtype=dtype),
        )
        self.register_buffer("held", torch.ones(classes, dtype=dtype))

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        features: Tensor = self.layers(torch.cat([noise, F.one_hot(y, self.classes).to(noise)], dim=1))
        return features

    def draw(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform noise and generated features, one row for each class of `y`."""
        noise = torch.rand(len(y), self.noise, dtype=self.held.dtype, device=self.held.device)
        return noise, self(noise, y)

    def wanted(self, count: int) -> Tensor:
        """Draw `count` classes uniformly from those it was trained for."""
        kind = torch.float32 if self.held.device.type == "mps" else torch.float64  # which that device has not
        return torch.multinomial((self.held > 0).to(kind), count, replacement=True)
