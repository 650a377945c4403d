"""Inputs out of nothing: a generator that ships with the package, for `data.reference = "generator"`.

It was trained on nothing, so it can give away nothing: images are smooth fields of colour with half-planes, blobs and
strokes laid over them, flat features a mixture of correlated Gaussians. They are as far from real samples as that
sounds, but unlike noise they have edges, gradients and correlations for a network to respond to.

It is also the pattern for a generator of one's own, which `data.reference = "package.module:function"` names: a
function of the four arguments below that returns the inputs, or the inputs and their labels.
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
CHUNK = 64  # drawn together: sample i is the same however many are asked for
LAYERS = 4
OCTAVES = (2, 4, 8, 16)  # cells across, of the grids that a smooth field is the sum of
SHARP = (3.0, 1.5)  # of an outline: the least, for a unit length, and the most, for a pixel


def generate(count: int, shape: tuple[int, ...], classes: int, seed: int) -> Tensor:
    """`count` inputs in [-1, 1]: images where the shape is (channels, height, width), features where it is flat.

    The number of classes is that of the mixture's components, two a class; images take no notice of it.

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
    made = np.concatenate([np.empty((0, *shape), np.float32), *chunks])[:count]
    return torch.from_numpy(np.ascontiguousarray(made))


def _features(rng: Rng, common: Rng, width: int, parts: int) -> Floats:
    """Each row from one of the components, which have a centre and a few directions in which they are drawn out."""
    rank = min(width, 4)
    centres = common.normal(size=(parts, width))
    stretch = common.normal(size=(parts, width, rank)) / np.sqrt(rank)
    own = rng.integers(parts, size=CHUNK)
    along = (stretch[own] * rng.normal(size=(CHUNK, 1, rank))).sum(axis=2)
    x = centres[own] + 0.7 * along + 0.3 * rng.normal(size=(CHUNK, width))
    made: Floats = np.tanh(0.7 * x).astype(np.float32)
    return made


def _images(rng: Rng, channels: int, height: int, width: int) -> Floats:
    """A background, then layers over it, each with an outline, a colour and a texture of its own."""
    ratio = max(height, width)
    v, u = np.meshgrid(
        np.linspace(-1, 1, height) * height / ratio, np.linspace(-1, 1, width) * width / ratio, indexing="ij"
    )
    canvas = _filling(rng, channels, height, width)
    # Two in five have the plain dark ground of a digit or a garment.
    canvas = np.where(rng.random((CHUNK, 1, 1, 1)) < 0.4, -1.6, canvas)
    for layer in range(LAYERS):
        outline = _outline(rng, u, v, ratio)[:, None]
        filling = _filling(rng, channels, height, width)
        there = (rng.random((CHUNK, 1, 1, 1)) < 0.7) | (layer == 0)
        canvas = np.where(there, canvas + outline * (filling - canvas), canvas)
    made: Floats = np.tanh(1.3 * canvas).astype(np.float32)
    return made


def _outline(rng: Rng, u: Any, v: Any, ratio: int) -> Any:
    """1 inside and 0 outside of a half-plane, an ellipse or a bent stroke, by image; from blurred to as sharp as pixels
    allow."""

    def each(low: float, high: float) -> Any:
        return rng.uniform(low, high, (CHUNK, 1, 1))

    turn, kind = each(0, np.pi), rng.integers(3, size=(CHUNK, 1, 1))
    across, down = u - each(-0.7, 0.7), v - each(-0.7, 0.7)
    p, q = across * np.cos(turn) + down * np.sin(turn), down * np.cos(turn) - across * np.sin(turn)
    long, short, bend, thick = each(0.2, 0.8), each(0.15, 0.6), each(-1.2, 1.2), each(0.04, 0.15)
    ellipse = (1 - np.hypot(p / long, q / short)) * np.minimum(long, short)
    stroke = thick - np.maximum(np.abs(q - bend * p * p), np.abs(p) - long)
    inside = np.choose(kind, [p, ellipse, stroke])  # how far inside, below 0 outside
    sharp = np.exp(each(np.log(SHARP[0]), np.log(max(SHARP[0], SHARP[1] * ratio))))
    return 0.5 + 0.5 * np.tanh(2 * sharp * inside)


def _filling(rng: Rng, channels: int, height: int, width: int) -> Any:
    """A colour, and a smooth field that moves it along another one."""
    colour, towards = rng.normal(size=(2, CHUNK, channels, 1, 1))
    grey = rng.normal(size=(CHUNK, 1, 1, 1))  # channels of one image have more in common than not
    strength = rng.random((CHUNK, 1, 1, 1)) ** 2
    return 0.7 * grey + 0.5 * colour + strength * (0.6 + 0.4 * towards) * _field(rng, height, width)[:, None]


def _field(rng: Rng, height: int, width: int) -> Any:
    """Random values on grids of several widths, joined smoothly; how much the fine grids count differs by image."""
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
