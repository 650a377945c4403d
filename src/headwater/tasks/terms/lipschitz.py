"""FedAlign's loss term: the last block with fewer channels should have the Lipschitz constant of the full block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.models.slim import channels, last_block, run, thin, untouched
from headwater.tasks.local import Batch

TINY = 1e-12  # of an eigenvalue: feature maps that are all zero have no direction


@dataclass(frozen=True)
class Steepness:
    """mu · (loss / d) · d with d = mean (s_thin − s_full)², where s stands for a block's Lipschitz constant.

    The block's input has no gradient, s_full neither, and the factor loss / d is a number: the term's value is always
    mu · loss, its gradient that of d, rescaled. Where d is 0 there is nothing to align and the term is 0.
    """

    mu: float
    width: float
    iterations: int

    def __call__(self, step: Batch) -> Tensor:
        if not self.mu:
            return step.loss.new_zeros(())
        features = step.net.layers("fedalign")
        before, block = last_block(features, "fedalign")
        with torch.no_grad(), untouched(features):
            inside = run(before, step.x)
            full = steepness(inside, run(block, inside), self.iterations)
        some = inside[:, : channels(inside.shape[1], self.width)]
        apart = F.mse_loss(steepness(some, thin(block, some, self.width), self.iterations), full)
        ratio = (step.loss / apart).detach()
        return self.mu * torch.where(torch.isfinite(ratio), ratio, 0.0) * apart


def steepness(inside: Tensor, outside: Tensor, iterations: int) -> Tensor:
    """An estimate of the Lipschitz constant of the map from `inside` to `outside`, one number per sample.

    The root of the largest eigenvalue of T·Tᵀ, where T is the product of both maps over their pixels.
    """
    matrix = transmitting(inside, outside)
    return top_eigenvalue(matrix @ matrix.transpose(1, 2), iterations).clamp_min(TINY).sqrt()


def transmitting(inside: Tensor, outside: Tensor) -> Tensor:
    """(samples, channels in, channels out): mean over pixels of input times output; the input is pooled to fit."""
    if inside.dim() == 4:
        inside = F.adaptive_avg_pool2d(inside, (outside.shape[2], outside.shape[3]))
    before, after = (maps.reshape(*maps.shape[:2], -1) for maps in (inside, outside))
    return before @ after.transpose(1, 2) / before.shape[2]


def top_eigenvalue(matrices: Tensor, iterations: int) -> Tensor:
    """Of each symmetric matrix, by power iterations from the vector of ones."""
    vector = torch.ones_like(matrices[:, :, :1])
    norm = vector[:, :1]
    for _ in range(iterations):
        moved = matrices @ vector
        norm = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
        vector = moved / norm.clamp_min(TINY)
    return norm[:, 0, 0]
