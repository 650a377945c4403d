"""Residual nets of 8 to 56 layers in both published forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headwater.models.base import ModelSpec
from headwater.models.resnet import Block, PaddedSubsample

COLOUR = (3, 32, 32)


@pytest.mark.parametrize(("shortcut", "count"), [("projection", 78_042), ("padding", 75_530)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_has_the_published_number_of_parameters(shortcut: str, count: int, norm: str) -> None:
    assert ModelSpec("resnet8", COLOUR, 10, {"shortcut": shortcut, "norm": norm}).count() == count


def expected(depth: int, shortcut: str, norm: str, width: int, classes: int) -> int:
    """Parameters by the layers: 6n 3 x 3 convolutions after the stem, a norm with two numbers a channel after each."""
    n, total = (depth - 2) // 6, 0
    bias = shortcut == "padding" or norm == "none"

    def layer(before: int, after: int, size: int, biased: bool) -> int:
        return size * size * before * after + biased * after + (norm != "none") * 2 * after

    before = 16 * width
    total += layer(3, before, 3, bias)
    for after in (16 * width, 32 * width, 64 * width):
        total += layer(before, after, 3, bias) + (2 * n - 1) * layer(after, after, 3, bias)
        if shortcut == "projection" and after != before:
            total += layer(before, after, 1, norm == "none")
        before = after
    return total + before * classes + classes


@pytest.mark.parametrize("depth", [8, 20, 32, 56])
@pytest.mark.parametrize("shortcut", ["projection", "padding"])
@pytest.mark.parametrize(("norm", "width"), [("batch", 1), ("group", 1), ("none", 1), ("batch", 4)])
def test_count_by_formula(depth: int, shortcut: str, norm: str, width: int) -> None:
    options = {"shortcut": shortcut, "norm": norm, "width": width}
    found = ModelSpec(f"resnet{depth}", COLOUR, 100, options).count()
    assert found == expected(depth, shortcut, norm, width, 100)


def test_well_known_counts() -> None:
    """0.27, 0.47 and 0.86 million, as the nets were published; the projections add 2 752."""
    counts = [ModelSpec(f"resnet{depth}", COLOUR, 10).count() - 2752 for depth in (20, 32, 56)]
    assert counts == [269_722, 464_154, 853_018]


@pytest.mark.parametrize("depth", [8, 20, 32, 56])
def test_layers_as_named(depth: int) -> None:
    """All convolutions but those of shortcuts, and the classifier."""
    layers = list(ModelSpec(f"resnet{depth}", COLOUR, 10).outline().modules())
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in layers) + 1 == depth
    assert sum(isinstance(m, Block) for m in layers) == (depth - 2) // 2


def test_first_weights_are_drawn_in_the_order_of_the_layers() -> None:
    """Each layer as torch draws it, then the convolutions again by fan-out: runs of old depend on it."""
    torch.manual_seed(3)
    model = ModelSpec("resnet8", (3, 8, 8), 5).build()
    torch.manual_seed(3)
    stem, layers = nn.Conv2d(3, 16, 3, bias=False), []
    for before, after in ((16, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, bias=False), nn.Conv2d(after, after, 3, bias=False)]
        layers += [nn.Conv2d(before, after, 1, bias=False)] if before != after else []
    last = nn.Linear(64, 5)
    for layer in (stem, *layers):
        nn.init.normal_(layer.weight, 0, math.sqrt(2 / (layer.out_channels * layer.kernel_size[0] ** 2)))
    found = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(found, (stem, *layers), strict=True))
    assert torch.equal(model.get_submodule("classifier").weight, last.weight)


def test_names_of_its_tensors() -> None:
    names = ModelSpec("resnet8", COLOUR, 10).outline().state_dict().keys()
    assert {name.partition(".")[0] for name in names} == {"features", "classifier"}
    assert {".".join(name.split(".")[:3]) for name in names if name.startswith("features.4")} == {
        "features.4.body",
        "features.4.shortcut",
    }
    assert "features.4.shortcut.0.weight" in names


@pytest.mark.parametrize("shortcut", ["projection", "padding"])
def test_without_a_norm_a_block_starts_as_its_shortcut(shortcut: str) -> None:
    torch.manual_seed(0)
    block = Block(4, 4, shortcut, "none", 2)
    model = ModelSpec("resnet8", (3, 8, 8), 4, {"norm": "none", "shortcut": shortcut}).build()
    x = torch.randn(2, 4, 8, 8)
    assert not torch.equal(block(x), torch.relu(x)), "only a whole net is drawn so"
    for part in model.modules():
        if isinstance(part, Block):
            y = torch.randn(2, part.body[0].in_channels, 8, 8)
            assert torch.equal(part(y), torch.relu(part.shortcut(y)))


def test_without_a_norm_a_deep_net_neither_fades_nor_blows_up() -> None:
    torch.manual_seed(0)
    model = ModelSpec("resnet56", (3, 8, 8), 4, {"norm": "none"}).build()
    features = model.get_submodule("features")(torch.randn(16, 3, 8, 8))
    assert 0.05 < float(features.detach().std()) < 5


def test_projection_is_the_default() -> None:
    assert ModelSpec("resnet8", COLOUR, 10).count() == 78_042


def test_group_norm_replaces_every_batch_norm() -> None:
    layers = list(ModelSpec("resnet8", COLOUR, 10, {"norm": "group", "groups": 4}).outline().modules())
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in layers)
    assert [layer.num_groups for layer in layers if isinstance(layer, nn.GroupNorm)] == [4] * 9


def test_with_group_norm_a_sample_does_not_see_its_batch() -> None:
    torch.manual_seed(0)
    model = ModelSpec("resnet8", COLOUR, 10, {"norm": "group"}).build().train()
    x = torch.rand(4, *COLOUR)
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


def test_padded_subsample_by_hand() -> None:
    """Three new channels: two before, one after; pixels 0 and 2 of each row stay."""
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    out = PaddedSubsample(3)(x)
    assert out.shape == (1, 4, 2, 2)
    assert out[0, 2].tolist() == [[0.0, 2.0], [6.0, 8.0]]
    assert out[0, [0, 1, 3]].abs().sum() == 0


def test_padding_form_starts_he_normal_with_zero_biases() -> None:
    torch.manual_seed(0)
    model = ModelSpec("resnet8", COLOUR, 10, {"shortcut": "padding"}).build()
    last = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)][-1]
    assert last.bias is not None
    assert float(last.bias.detach().abs().sum()) == 0
    assert float(last.weight.detach().std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)


def test_projection_form_starts_by_fan_out() -> None:
    torch.manual_seed(0)
    model = ModelSpec("resnet8", COLOUR, 10).build()
    widening = next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d) and layer.out_channels == 64)
    assert widening.bias is None
    assert float(widening.weight.detach().std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)
