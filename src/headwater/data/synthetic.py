"""Synthetic inputs for `data.reference = "generator"`.

The generator was trained on no data, so it reveals none. Images are smooth fields of colour with half-planes, ellipses
and strokes over them; flat features are a mixture of correlated Gaussians. They do not look like real samples but have
edges, gradients and correlations, which noise has not.

A generator of the user's own, `data.reference = "package.module:function"`, takes the same four arguments as `generate`
and returns the inputs, or the inputs and their labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.core.rng import stream
from headwater.errors import DataError

Floats = np.ndarray[Any, np.dtype[np.float32]]
Rng = np.random.Generator
CHUNK = 64  # samples drawn together; sample i does not depend on how many are drawn
LAYERS = 4
OCTAVES = (2, 4, 8, 16)  # cells across, of the grids whose sum is a smooth field
SHARP = (3.0, 1.5)  # sharpness of an outline: the least, per unit length, and the most, per pixel


def generate(count: int, shape: tuple[int, ...], classes: int, seed: int) -> Tensor:
    """Draw inputs in [-1, 1].

    Args:
        count: how many.
        shape: (channels, height, width) for images, (width,) for flat features.
        classes: flat features come from a mixture of two components per class; images ignore it.
        seed: of the draw.

    Example:
        >>> generate(3, (1, 8, 8), 10, 0).shape
        torch.Size([3, 1, 8, 8])
    """
    if len(shape) not in (1, 3):
        raise DataError(
            f"the generator draws images (channels, height, width) and flat features, not inputs of shape {shape}; "
            "use another data.reference, such as 'holdout'"
        )
    chunks = [
        _features(stream(seed, "generator", at), stream(seed, "generator"), shape[0], 2 * classes)
        if len(shape) == 1
        else _images(stream(seed, "generator", at), *shape)
        for at in range(0, count, CHUNK)
    ]
    drawn = np.concatenate([np.empty((0, *shape), np.float32), *chunks])[:count]
    return torch.from_numpy(np.ascontiguousarray(drawn))


def _features(rng: Rng, common: Rng, width: int, parts: int) -> Floats:
    """Rows of a mixture whose components have a centre and a few directions of larger variance."""
    rank = min(width, 4)
    centres = common.normal(size=(parts, width))
    stretch = common.normal(size=(parts, width, rank)) / np.sqrt(rank)
    own = rng.integers(parts, size=CHUNK)
    along = (stretch[own] * rng.normal(size=(CHUNK, 1, rank))).sum(axis=2)
    x = centres[own] + 0.7 * along + 0.3 * rng.normal(size=(CHUNK, width))
    features: Floats = np.tanh(0.7 * x).astype(np.float32)
    return features


def _images(rng: Rng, channels: int, height: int, width: int) -> Floats:
    """A background and layers over it, each with an outline, a colour and a texture."""
    ratio = max(height, width)
    v, u = np.meshgrid(
        np.linspace(-1, 1, height) * height / ratio, np.linspace(-1, 1, width) * width / ratio, indexing="ij"
    )
    canvas = _filling(rng, channels, height, width)
    # Two in five have a plain dark background, as digits and garments have.
    canvas = np.where(rng.random((CHUNK, 1, 1, 1)) < 0.4, -1.6, canvas)
    for layer in range(LAYERS):
        outline = _outline(rng, u, v, ratio)[:, None]
        filling = _filling(rng, channels, height, width)
        there = (rng.random((CHUNK, 1, 1, 1)) < 0.7) | (layer == 0)
        canvas = np.where(there, canvas + outline * (filling - canvas), canvas)
    images: Floats = np.tanh(1.3 * canvas).astype(np.float32)
    return images


def _outline(rng: Rng, u: Any, v: Any, ratio: int) -> Any:
    """1 inside and 0 outside of a half-plane, an ellipse or a bent stroke per image, with a random sharpness."""

    def each(low: float, high: float) -> Any:
        return rng.uniform(low, high, (CHUNK, 1, 1))

    turn, kind = each(0, np.pi), rng.integers(3, size=(CHUNK, 1, 1))
    across, down = u - each(-0.7, 0.7), v - each(-0.7, 0.7)
    p, q = across * np.cos(turn) + down * np.sin(turn), down * np.cos(turn) - across * np.sin(turn)
    long, short, bend, thick = each(0.2, 0.8), each(0.15, 0.6), each(-1.2, 1.2), each(0.04, 0.15)
    ellipse = (1 - np.hypot(p / long, q / short)) * np.minimum(long, short)
    stroke = thick - np.maximum(np.abs(q - bend * p * p), np.abs(p) - long)
    inside = np.choose(kind, [p, ellipse, stroke])  # distance from the outline, negative outside
    sharp = np.exp(each(np.log(SHARP[0]), np.log(max(SHARP[0], SHARP[1] * ratio))))
    return 0.5 + 0.5 * np.tanh(2 * sharp * inside)


def _filling(rng: Rng, channels: int, height: int, width: int) -> Any:
    """A colour plus a smooth field times another colour."""
    colour, towards = rng.normal(size=(2, CHUNK, channels, 1, 1))
    grey = rng.normal(size=(CHUNK, 1, 1, 1))  # channels of one image are correlated
    strength = rng.random((CHUNK, 1, 1, 1)) ** 2
    return 0.7 * grey + 0.5 * colour + strength * (0.6 + 0.4 * towards) * _field(rng, height, width)[:, None]


def _field(rng: Rng, height: int, width: int) -> Any:
    """Random values on grids of several widths, interpolated; the weight of the fine grids differs by image."""
    rough = rng.uniform(0.2, 0.9, (CHUNK, 1, 1))
    total, weight = np.zeros((CHUNK, height, width)), np.zeros((CHUNK, 1, 1))
    for octave, cells in enumerate(OCTAVES):
        grid = rng.normal(size=(CHUNK, cells + 1, cells + 1))
        for axis, size in ((1, height), (2, width)):
            at = np.linspace(0, cells, size, endpoint=False)
            low = at.astype(int)
            part = at - low
            part = (part * part * (3 - 2 * part)).reshape((-1, 1) if axis == 1 else (1, -1))
            grid = np.take(grid, low, axis) * (1 - part) + np.take(grid, low + 1, axis) * part
        total += rough**octave * grid
        weight += rough ** (2 * octave)
    return 1.5 * total / np.sqrt(weight)
