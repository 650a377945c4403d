"""ResNet-18 with both stems, norms and a feature layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwater.models.base import ModelSpec
from headwater.models.resnet import Block

COLOUR = (3, 32, 32)


def body() -> int:
    """All up to the mean over pixels: a 7 x 7 stem, 16 convolutions of 3 x 3, 3 of 1 x 1, a norm after each."""
    total = 49 * 3 * 64 + 2 * 64
    before = 64
    for width in (64, 128, 256, 512):
        total += 9 * before * width + 3 * 9 * width * width + 4 * 2 * width
        total += (before * width + 2 * width) if before != width else 0
        before = width
    return total


@pytest.mark.parametrize(("classes", "published"), [(10, 11_209_994), (100, 11_215_844)])
def test_has_the_published_number_of_parameters(classes: int, published: int) -> None:
    """With 64 features, as FedHKD uses it; one of 1000 classes without has 11 689 512."""
    found = ModelSpec("resnet18", COLOUR, classes, {"features": 64}).count()
    assert found == body() + 512 * 64 + 64 + 64 * classes + classes == published
    assert body() + 512 * 1000 + 1000 == 11_689_512


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_small_stem(norm: str) -> None:
    """3 x 3 in place of 7 x 7."""
    options = {"stem": "small", "norm": norm}
    assert ModelSpec("resnet18", COLOUR, 10, options).count() == body() - 40 * 3 * 64 + 512 * 10 + 10


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("small", 32)])
def test_what_the_stem_leaves_of_the_image(stem: str, side: int) -> None:
    model = ModelSpec("resnet18", COLOUR, 10, {"stem": stem}).outline()
    seen: list[tuple[int, ...]] = []
    first = next(m for m in model.modules() if isinstance(m, Block))
    first.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    model(torch.zeros(2, *COLOUR, device="meta"))
    assert seen == [(2, 64, side, side)]


@pytest.mark.parametrize("side", [8, 28, 64])
def test_imagenet_stem_takes_any_size(side: int) -> None:
    model = ModelSpec("resnet18", (1, side, side), 3).outline()
    assert model(torch.zeros(2, 1, side, side, device="meta")).shape == (2, 3)


def test_group_norm_of_two_groups_everywhere() -> None:
    layers = list(ModelSpec("resnet18", COLOUR, 100, {"norm": "group"}).outline().modules())
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in layers)
    assert [layer.num_groups for layer in layers if isinstance(layer, nn.GroupNorm)] == [2] * 20


def test_features_are_what_a_linear_layer_gives() -> None:
    torch.manual_seed(0)
    model = ModelSpec("resnet18", (3, 8, 8), 3, {"features": 6}).build().eval()
    features: Tensor = model.get_submodule("features")(torch.randn(4, 3, 8, 8)).detach()
    assert features.shape == (4, 6)
    assert float(features.min()) < 0 < float(features.max()), "no activation after it"
