"""The generator that ships: varied, structured, and the same by seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwater.data.synthetic import CHUNK, generate
from headwater.errors import DataError


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 5, 9), (1, 1, 1), (20,), (1,)])
def test_shape_range_and_kind(shape: tuple[int, ...]) -> None:
    x = generate(70, shape, 10, 0)
    assert x.shape == (70, *shape)
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    assert -1 <= float(x.min()) < 0 < float(x.max()) <= 1


@pytest.mark.parametrize("shape", [(3, 12, 12), (7,)])
def test_a_sample_is_the_same_however_many_are_asked_for(shape: tuple[int, ...]) -> None:
    many = generate(2 * CHUNK + 5, shape, 4, 3)
    assert torch.equal(generate(CHUNK + 1, shape, 4, 3), many[: CHUNK + 1])
    assert torch.equal(generate(3, shape, 4, 3), many[:3])
    assert len(generate(0, shape, 4, 3)) == 0
    assert not torch.equal(generate(3, shape, 4, 4), many[:3])
    assert len(torch.unique(many.flatten(1), dim=0)) == len(many)


def test_images_are_smooth_but_for_edges() -> None:
    """Neighbouring pixels of noise are as far apart as any two; here most are near and a few are across an edge."""
    x = generate(300, (1, 32, 32), 10, 0).numpy()
    steps = np.abs(np.diff(x, axis=3))
    pairs = np.abs(x - np.roll(x, 1, axis=0))
    assert np.median(steps) < 0.05 * np.median(pairs)
    sharp = (steps > 0.5).any(axis=(1, 2, 3))
    assert sharp.mean() > 0.5
    assert 0.001 < (steps > 0.5).mean() < 0.1


def test_images_are_varied() -> None:
    x = generate(300, (3, 32, 32), 10, 0).numpy()
    means, spreads = x.mean(axis=(1, 2, 3)), x.std(axis=(1, 2, 3))
    assert means.std() > 0.2
    assert np.quantile(spreads, 0.1) < 0.35 < np.quantile(spreads, 0.6)
    assert (spreads < 0.02).mean() < 0.03  # hardly any is blank
    dark = (x < -0.9).mean(axis=(1, 2, 3))
    assert (dark > 0.4).mean() > 0.1  # the ground of digits and garments
    assert (dark < 0.05).mean() > 0.3


def test_features_hang_together() -> None:
    x = generate(4000, (12,), 3, 0).numpy().astype(float)
    correlation = np.abs(np.corrcoef(x.T) - np.eye(12))
    assert correlation.max() > 0.3
    # Independent columns of 4000 rows correlate by about 0.016.
    assert correlation.mean() > 0.1


def test_other_shapes_are_refused() -> None:
    with pytest.raises(DataError, match=r"not inputs of shape \(2, 3, 4, 5\)"):
        generate(3, (2, 3, 4, 5), 2, 0)
