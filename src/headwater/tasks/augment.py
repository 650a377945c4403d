"""Random changes of training images. They take numbers as they are, so results do not depend on how a kernel rounds."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.specs import Augment


def augmented(x: Tensor, kind: Augment, rng: np.random.Generator) -> Tensor:
    """A batch of images, changed at random; each image by draws of its own.

    Args:
        x: images (sample, channel, height, width).
        kind: "flip" mirrors an image with probability ½. "crop-flip" also moves it by up to an eighth of its height and
            width; what enters from outside is 0, the value of a scaled image's mean. "none" changes nothing.
        rng: the draws.
    """
    if kind == "none":
        return x
    count, _, height, width = x.shape
    rows, columns = np.arange(height)[None].repeat(count, 0), np.arange(width)[None].repeat(count, 0)
    if kind == "crop-flip":
        down, right = height // 8, width // 8
        x = F.pad(x, (right, right, down, down))
        rows += rng.integers(0, 2 * down + 1, (count, 1))
        columns += rng.integers(0, 2 * right + 1, (count, 1))
    mirrored = rng.random(count) < 0.5
    columns[mirrored] = columns[mirrored, ::-1]
    at = torch.arange(count, device=x.device)[:, None, None]
    down_to, right_to = (torch.from_numpy(places).to(x.device) for places in (rows, columns))
    taken = x[at, :, down_to[:, :, None], right_to[:, None, :]]
    return taken.movedim(3, 1)
