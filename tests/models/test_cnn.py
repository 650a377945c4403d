"""The small convolutional net."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwater.models.base import ModelSpec


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 9, 13)])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_takes_images_of_many_sizes(shape: tuple[int, ...], norm: str) -> None:
    torch.manual_seed(0)
    model = ModelSpec("cnn", shape, 5, {"norm": norm}).build()
    assert model(torch.rand(3, *shape)).shape == (3, 5)


def test_count_by_hand() -> None:
    """1 → 4 channels, 8 x 8 → 4 x 4: 36 weights, 2 · 4 for the norm; 64 features to 3 classes: 195."""
    assert ModelSpec("cnn", (1, 8, 8), 3, {"widths": [4], "hidden": 0}).count() == 36 + 8 + 195


def test_only_the_norm_free_net_has_biases_in_convolutions() -> None:
    for norm in ("batch", "none"):
        convolutions = [
            layer
            for layer in ModelSpec("cnn", (1, 8, 8), 3, {"norm": norm}).outline().modules()
            if isinstance(layer, nn.Conv2d)
        ]
        assert [layer.bias is not None for layer in convolutions] == [norm == "none"] * 2


def test_a_batch_of_one_can_be_trained_on() -> None:
    model = ModelSpec("cnn", (1, 8, 8), 3).build().train()
    assert bool(torch.isfinite(model(torch.rand(1, 1, 8, 8))).all())


class TestOfMtgc:
    @pytest.mark.parametrize(("shape", "left"), [((3, 32, 32), 5), ((1, 28, 28), 4), ((3, 16, 16), 1)])
    def test_count_by_hand(self, shape: tuple[int, ...], left: int) -> None:
        """5 x 5 convolutions take 4 px off each side, pools halve: 32 → 28 → 14 → 10 → 5."""
        convolutions = 25 * shape[0] * 64 + 64 + 25 * 64 * 64 + 64
        dense = 64 * left * left * 384 + 384 + 384 * 192 + 192 + 192 * 10 + 10
        assert ModelSpec("mtgc_cnn", shape, 10).count() == convolutions + dense

    def test_layers_as_published(self) -> None:
        layers = list(ModelSpec("mtgc_cnn", (3, 32, 32), 10).outline().modules())
        assert [(m.in_channels, m.out_channels, m.kernel_size) for m in layers if isinstance(m, nn.Conv2d)] == [
            (3, 64, (5, 5)),
            (64, 64, (5, 5)),
        ]
        assert [m.out_features for m in layers if isinstance(m, nn.Linear)] == [384, 192, 10]
        assert sum(isinstance(m, nn.ReLU) for m in layers) == 4
