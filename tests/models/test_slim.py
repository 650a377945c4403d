"""Chains of layers, and the last stage at a fraction of its width."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwater.errors import ConfigError
from headwater.models.base import ModelSpec, Net
from headwater.models.resnet import Block
from headwater.models.slim import chain, channels, last_stage, run, thin, untouched, weighted
from headwater.models.wrn import PreBlock

IMAGE = (3, 8, 8)


def built(name: str, shape: tuple[int, ...] = IMAGE, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return ModelSpec(name, shape, 4, options).build()


def test_chain_takes_sequences_apart() -> None:
    net = Net(nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 3)), nn.Linear(3, 2))
    assert [name for name, _ in chain(net)] == ["features.0.0", "features.0.1", "features.1", "classifier"]


def test_a_layer_that_is_there_twice_is_taken_twice() -> None:
    active = nn.ReLU()
    net = nn.Sequential(nn.Linear(2, 3), active, nn.Linear(3, 3), active, nn.Linear(3, 2))
    assert [name for name, _ in chain(net)] == ["0", "1", "2", "3", "4"]
    assert weighted(net, "fedma") == ("0", "2", "4")
    same = nn.Linear(3, 3)
    with pytest.raises(ConfigError, match="this model has a Linear"):
        weighted(nn.Sequential(same, active, same, active, nn.Linear(3, 2)), "fedma")
    with pytest.raises(ConfigError, match="this model has a ReLU"):
        weighted(nn.Sequential(nn.Linear(2, 3), active), "fedma")


def test_layers_of_plain_nets() -> None:
    assert weighted(built("mlp", hidden=[5, 6]), "fedma") == ("features.1", "features.3", "classifier")
    assert len(weighted(built("vgg9"), "fedma")) == 9
    assert len(weighted(built("cnn", norm="none"), "fedma")) == 4
    assert weighted(built("linear"), "fedma") == ("classifier",)


@pytest.mark.parametrize(
    ("name", "options", "found"),
    [("cnn", {}, "BatchNorm2d"), ("cnn", {"norm": "group"}, "GroupNorm"), ("resnet8", {}, "BatchNorm2d")],
)
def test_other_nets_are_refused(name: str, options: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=rf"fedma matches neurons .* has a {found}; use 'mlp'"):
        weighted(built(name, **options), "fedma")


@pytest.mark.parametrize(
    ("name", "options", "kind", "channels_in"),
    [
        ("resnet8", {}, Block, 32),
        ("cnn", {}, nn.Conv2d, 32),
        ("cnn", {"hidden": 0}, nn.Conv2d, 32),
        ("resnet20", {"norm": "none"}, Block, 32),
        ("resnet18", {"features": 5}, Block, 256),
        ("wrn16_2", {}, PreBlock, 64),
        ("shufflenetv2", {"features": 5}, nn.Conv2d, 464),
        ("vgg9", {}, nn.Conv2d, 256),
        ("mlp", {"hidden": [7, 5]}, nn.Linear, 7),
    ],
)
def test_last_stage(name: str, options: dict[str, Any], kind: type, channels_in: int) -> None:
    """Residual blocks of the last width, or the last convolution with what belongs to it, or the last hidden layer."""
    net = built(name, **options).eval()
    before, block = last_stage(net.features, "fedalign")  # type: ignore[arg-type]
    assert isinstance(block[0], kind)
    inside = run(before, torch.rand(2, *IMAGE))
    assert inside.shape[1] == channels_in
    whole = run(block, inside)
    assert torch.allclose(whole, F.relu(whole)), "the activation is part of it"
    torch.testing.assert_close(thin(block, inside, 1.0), whole)


@pytest.mark.parametrize(("name", "blocks", "width"), [("resnet8", 1, 64), ("resnet18", 2, 512)])
@pytest.mark.parametrize("training", [False, True])
def test_thin_stage_by_hand(name: str, blocks: int, width: int, training: bool) -> None:
    """All blocks of the last width, each convolution with the first quarter of its channels in and out."""
    net = built(name, (3, 32, 32)).train(training)
    before, stage = last_stage(net.features, "fedalign")  # type: ignore[arg-type]
    assert list(stage) == [part for part in net.modules() if isinstance(part, Block)][-blocks:]
    inside = run(before, torch.rand(4, 3, 32, 32)).detach()
    assert inside.shape[1] == width // 2

    def normed(norm: Any, x: torch.Tensor) -> torch.Tensor:
        some = slice(x.shape[1])
        over = (None, None) if training else (norm.running_mean[some], norm.running_var[some])
        return F.batch_norm(x, *over, norm.weight[some], norm.bias[some], training, eps=norm.eps)

    x = inside[:, : width // 8]
    for block in stage:
        first, norm, _, second, again = block.body  # type: ignore[union-attr]
        stride = 2 if x.shape[1] == width // 8 else 1
        out = F.relu(normed(norm, F.conv2d(x, first.weight[: width // 4, : x.shape[1]], stride=stride, padding=1)))
        out = normed(again, F.conv2d(out, second.weight[: width // 4, : width // 4], padding=1))
        if stride == 2:
            conv, norm = block.shortcut  # type: ignore[misc]
            x = normed(norm, F.conv2d(x, conv.weight[: width // 4, : width // 8], stride=2))
        x = F.relu(out + x)
    torch.testing.assert_close(thin(stage, inside[:, : width // 8], 0.25), x)


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
@pytest.mark.parametrize("training", [False, True])
def test_at_full_width_it_is_the_network(name: str, training: bool) -> None:
    net = built(name, (3, 32, 32)).train(training)
    before, stage = last_stage(net.features, "fedalign")  # type: ignore[arg-type]
    x = torch.rand(4, 3, 32, 32)
    with torch.no_grad(), untouched(net):
        pixels = thin(stage, run(before, x), 1.0).mean((2, 3))
        torch.testing.assert_close(net.classifier(pixels), net(x))  # type: ignore[operator]


def test_a_model_without_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fedalign runs the last stage .* use 'mlp', 'cnn' or 'resnet8'"):
        last_stage(nn.Flatten(), "fedalign")
    unknown = nn.Sequential(nn.Conv2d(3, 4, 3), nn.TransformerEncoderLayer(4, 1, batch_first=True))
    with pytest.raises(ConfigError, match="finds no residual block"):
        last_stage(unknown, "fedalign")
    with pytest.raises(ConfigError, match="finds no residual block"):
        last_stage(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), "fedalign")


def test_thin_linear_layer_by_hand() -> None:
    """The first 1 of 2 rows and 1 of 2 columns of (1 2; 3 4) with bias (5, 6): relu(1·x + 5)."""
    layer = nn.Linear(2, 2)
    layer.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    layer.bias.data = torch.tensor([5.0, 6.0])
    found = thin([layer, nn.ReLU()], torch.tensor([[10.0], [-7.0]]), 0.5)
    assert found.tolist() == [[15.0], [0.0]]


@pytest.mark.parametrize("width", [0.25, 0.3, 0.5])
@pytest.mark.parametrize("shortcut", ["projection", "padding"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_thin_residual_block(shortcut: str, norm: str, width: float) -> None:
    """It has the first channels of every layer; with group norm in as many groups as divide both."""
    net = built("resnet8", shortcut=shortcut, norm=norm)
    block = last_stage(net.features, "fedalign")[1]  # type: ignore[arg-type]
    inside = torch.rand(2, channels(32, width), 4, 4)
    assert thin(block, inside, width).shape == (2, channels(64, width), 2, 2)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_thin_preactivated_block(norm: str) -> None:
    """One that widens and one that does not, each with a quarter of the channels."""
    net = built("wrn16_2", norm=norm)
    widening, last = [part for part in net.modules() if isinstance(part, PreBlock)][-2:]
    inside = torch.rand(2, channels(64, 0.25), 4, 4)
    between = thin([widening], inside, 0.25)
    assert between.shape == (2, channels(128, 0.25), 2, 2)
    assert thin([last], between, 0.25).shape == between.shape
    torch.testing.assert_close(thin([widening.eval()], torch.ones(1, 64, 4, 4), 1.0), widening(torch.ones(1, 64, 4, 4)))


def test_thin_batch_norm_by_hand() -> None:
    """Of the batch itself in training, of the running statistics else; neither writes these."""
    norm = nn.BatchNorm1d(2, eps=1e-12)
    norm.weight.data, norm.bias.data = torch.tensor([3.0, 9.0]), torch.tensor([1.0, 9.0])
    assert norm.running_mean is not None
    norm.running_mean.fill_(1.0)
    x = torch.tensor([[0.0], [2.0]])
    assert thin([norm], x, 0.5).flatten().tolist() == pytest.approx(
        [-2.0, 4.0]
    )  # mean 1, spread 1: ∓1, times 3, plus 1
    norm.eval()
    x = torch.tensor([[3.0]])
    assert thin([norm], x, 0.5).flatten().tolist() == pytest.approx([7.0])  # (3 − 1)/1 · 3 + 1
    assert norm.running_mean.tolist() == [1.0, 1.0]


def test_gradients_reach_the_slices_alone() -> None:
    layer = nn.Linear(4, 4)
    thin([layer], torch.ones(1, 2), 0.5).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad[:2, :2].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert float(layer.weight.grad.sum()) == 4.0


def test_untouched_statistics() -> None:
    norm = nn.BatchNorm1d(2).train()
    x = torch.rand(5, 2)
    with untouched(norm):
        inside = norm(x)
    assert norm.num_batches_tracked == 0
    assert torch.equal(inside, norm(x))
    assert norm.num_batches_tracked == 1
