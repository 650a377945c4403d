"""Constants of batch norm: those of torch, and those of Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headwater as hw
from headwater.config import Config
from headwater.models.base import ModelSpec
from headwater.models.building import has_batch_norm
from headwater.training.experiment import prepare

SMALL = {"data__name": "digits", "data__fraction": 0.1, "partition__clients": 2, "partition__sectors": 1}


def norms(spec: ModelSpec) -> list[nn.BatchNorm2d]:
    return [layer for layer in spec.build().modules() if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d)]


@pytest.mark.parametrize("name", ["resnet8", "wrn16_2", "shufflenetv2", "cnn"])
def test_constants_of_every_layer(name: str) -> None:
    options = {"norm": "batch"} if name in ("resnet8", "cnn") else {}
    torch_spec, keras_spec = (ModelSpec(name, (3, 8, 8), 4, options, bn=bn, bn_head=True) for bn in ("torch", "keras"))
    assert {(layer.momentum, layer.eps) for layer in norms(torch_spec)} == {(0.1, 1e-5)}
    assert {(layer.momentum, layer.eps) for layer in norms(keras_spec)} == {(0.01, 1e-3)}
    assert len(norms(keras_spec)) == len(norms(torch_spec)) > 1


def test_one_batch_as_keras_computes_it() -> None:
    """Keras: moving = 0.99 · moving + 0.01 · batch; output = (x − mean) / sqrt(variance + 0.001)."""
    spec = ModelSpec("own", (2,), 2, builder=lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)), bn="keras")
    norm = spec.build()[0]  # type: ignore[index]
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]])
    output = norm(x)
    torch.testing.assert_close(norm.running_mean, 0.01 * torch.tensor([3.0, 2.0]))
    torch.testing.assert_close(output[:, 0], torch.tensor([-2.0, 0.0, 2.0]) / (8 / 3 + 1e-3) ** 0.5)


def test_a_run_trains_with_them_and_is_read_back_with_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"fraction": 0.1, "clients": 2, "sectors": 1, "rounds": 1, "local__epochs": 1}
    options |= {"model": "cnn", "norm": "batch", "progress": False}
    usual = hw.run("fedavg", **options)
    run = hw.run("fedavg", bn="keras", out=tmp_path, **options)
    assert run.result["model_sha256"] != usual.result["model_sha256"]
    layers = hw.load(tmp_path).module.modules()
    assert {layer.eps for layer in layers if isinstance(layer, nn.BatchNorm2d)} == {1e-3}


def test_a_model_without_batch_norm_refuses_them() -> None:
    with pytest.raises(hw.ConfigError, match="'keras' sets constants of batch norm, and 'mlp'"):
        prepare(Config.load("fedavg", model__name="mlp", model__bn="keras", **SMALL))
    assert not has_batch_norm(ModelSpec("cnn", (3, 8, 8), 4, {"norm": "group"}).build())
