"""Random changes of training images. They take numbers as they are, so results do not depend on how a kernel rounds."""

from __future__ import annotations

from collections.abc import Sequence

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
    return augmented_together(x, kind, [(len(x), rng)])


def augmented_together(x: Tensor, kind: Augment, parts: Sequence[tuple[int, np.random.Generator]]) -> Tensor:
    """Batches of several clients, each in the same number of places; see `augmented`.

    Args:
        x: images (client and place, channel, height, width).
        kind: as for `augmented`.
        parts: how many images each batch has, and who draws for them. Those in further places are not changed.
    """
    if kind == "none":
        return x
    count, _, height, width = x.shape
    down, right = (height // 8, width // 8) if kind == "crop-flip" else (0, 0)
    rows, columns = np.arange(height)[None].repeat(count, 0), np.arange(width)[None].repeat(count, 0)
    x = F.pad(x, (right, right, down, down)) if kind == "crop-flip" else x
    for at, (own, rng) in enumerate(parts):
        first = at * (count // len(parts))
        mine, others = slice(first, first + own), slice(first + own, first + count // len(parts))
        if kind == "crop-flip":
            rows[mine] += rng.integers(0, 2 * down + 1, (own, 1))
            columns[mine] += rng.integers(0, 2 * right + 1, (own, 1))
        rows[others], columns[others] = rows[others] + down, columns[others] + right
        mirrored = first + np.flatnonzero(rng.random(own) < 0.5)
        columns[mirrored] = columns[mirrored, ::-1]
    at_row = torch.arange(count, device=x.device)[:, None, None]
    down_to, right_to = (torch.from_numpy(places).to(x.device) for places in (rows, columns))
    taken = x[at_row, :, down_to[:, :, None], right_to[:, None, :]]
    return taken.movedim(3, 1)
