"""Three classes in the plane, for pictures of decision boundaries. From a fixed stream: always the same points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.rng import stream
from headwater.data.base import Data

REACH = 3.0  # the picture shows (-REACH, REACH) in both directions
CLASSES = 3
TRAIN, TEST = 900, 1500
FAR, WIDE = 1.6, 0.65  # how far from the middle classes lie, and how far they scatter


def toy2d(data_dir: Path | None = None) -> Data:
    """One cloud a class, at the corners of a triangle; neighbours overlap a little."""
    rng = stream(0, "toy2d")
    return Data(*_clouds(TRAIN, rng), *_clouds(TEST, rng), name="toy2d")


def anywhere(count: int, shape: tuple[int, ...], classes: int, seed: int) -> Tensor:
    """Points spread evenly over the picture, to distil on: `data.reference = "headwater.data.toy:anywhere"`.

    >>> bool(anywhere(60, (2,), 3, 0).abs().max() < REACH)
    True
    """
    drawn = stream(seed, "toy2d", "anywhere").uniform(-REACH, REACH, (count, *shape))
    return torch.from_numpy(drawn.astype(np.float32))


def _clouds(rows: int, rng: np.random.Generator) -> tuple[Any, Any]:
    y = np.arange(rows) % CLASSES
    turn = np.pi / 2 + 2 * np.pi * y / CLASSES
    centre = FAR * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    x = centre + WIDE * rng.normal(size=(rows, 2))
    return np.clip(x, -REACH, REACH).astype(np.float32), y
