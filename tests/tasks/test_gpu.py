"""On a real GPU: as near to the CPU as float32 allows, the same bits every time, a sentence when memory is short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toys
from headwater.algorithms import ALGORITHMS
from headwater.config import Config
from headwater.data.base import Data
from headwater.errors import ConfigError
from headwater.training.experiment import prepare
from headwater.training.loop import Event, train
from headwater.training.result import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch finds no CUDA GPU in this machine: run this test on one that has"
    ),
]
DRAWS = ("fedgen",)  # methods whose random numbers are drawn on the device


def on(device: str, method: str, **options: Any) -> Run:
    engine = {"device": device, **options.pop("engine", {})}
    return toys.tiny_run(method, engine=engine, **options)


@pytest.mark.parametrize("method", [method for method in ALGORITHMS if method not in DRAWS])
def test_near_the_cpu(method: str) -> None:
    cpu, gpu = on("cpu", method), on("cuda", method)
    assert gpu.result["device"]["type"] == "cuda"
    for name, model in cpu.params.items():
        assert torch.allclose(model.vector, gpu.params[name].vector, atol=1e-4, rtol=1e-3)
    assert cpu.ledger.summary() == gpu.ledger.summary()


@pytest.mark.parametrize("method", ALGORITHMS)
def test_the_same_bits_every_time(method: str) -> None:
    first, again = (on("cuda", method) for _ in range(2))
    assert first.result["model_sha256"] == again.result["model_sha256"]


def test_the_same_bits_in_worker_processes() -> None:
    alone, shared = (on("cuda", "fedhead", engine={"name": name, "workers": 2}) for name in ("inline", "pool"))
    assert alone.result["model_sha256"] == shared.result["model_sha256"]


def image_run(method: str, engine: dict[str, Any], model: dict[str, Any]) -> Run:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 3, 8, 8)).astype("float32"), np.arange(50) % 3
    config = Config(
        rounds=2,
        data={"name": "arrays"},
        partition={"clients": 4, "sectors": 2, "scheme": "iid"},
        engine={"name": "inline", "device": "cuda"} | engine,
        model=model,
        local={"epochs": 1, "batch": 4, "optimizer": "sgd", "momentum": 0.0, "lr": 0.05},
        algorithm={"name": method},
    )
    return train(prepare(config, data=Data(x[:36], y[:36], x[36:], y[36:], class_names=["a", "b", "c"])))


@pytest.mark.parametrize("model", [{"name": "cnn", "norm": norm} for norm in ("batch", "group", "none")], ids=str)
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "feddyn", "fedhead"])
def test_stacked_convolutions_are_near_a_loop_and_the_same_everywhere(method: str, model: dict[str, Any]) -> None:
    stacked, again = (image_run(method, {}, model) for _ in range(2))
    loop = image_run(method, {"stack": "off"}, model)
    assert (stacked.result["stacking"]["way"], loop.result["stacking"]["way"]) == ("vmap", "loop")
    assert stacked.result["model_sha256"] == again.result["model_sha256"]
    for name, found in stacked.params.items():
        torch.testing.assert_close(found.vector, loop.params[name].vector, atol=1e-3, rtol=1e-3)


def test_stacked_convolutions_in_worker_processes() -> None:
    one, several = (
        image_run("fedavg", {"name": name, "workers": 2}, {"name": "resnet8"}) for name in ("inline", "pool")
    )
    assert one.result["model_sha256"] == several.result["model_sha256"]


def test_the_same_bits_after_a_stop(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(toys.tiny("fedhead", engine={"device": "cuda"}), out=tmp_path, watch=stop)
    resumed = train(toys.tiny("fedhead", engine={"device": "cuda"}), out=tmp_path)
    assert resumed.result["model_sha256"] == on("cuda", "fedhead").result["model_sha256"]


def test_torch_is_left_as_it_was() -> None:
    on("cuda", "fedavg")
    assert not torch.are_deterministic_algorithms_enabled()


def test_too_large_a_batch_is_one_sentence() -> None:
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        with pytest.raises(ConfigError, match="needs more memory than the device has free; lower batch"):
            on("cuda", "fedavg", model={"name": "mlp", "hidden": [20_000, 20_000]})
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
