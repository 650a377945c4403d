"""Learning rates that change from round to round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headwater as hw
from headwater.algorithms.fedhead import FedHeadPlus
from headwater.specs import DistillSpec, LocalSpec

SMALL: dict[str, Any] = {"data": "digits", "clients": 4, "sectors": 2, "fraction": 0.2, "local__epochs": 1}
SGD: dict[str, Any] = {"local__optimizer": "sgd", "local__lr": 0.1}


def rates(rounds: int, **options: Any) -> list[float]:
    spec = LocalSpec(epochs=1, lr=0.8, **options)
    return [spec.in_round(number, rounds).lr for number in range(1, rounds + 1)]


def test_rates_by_round() -> None:
    assert rates(3) == [0.8, 0.8, 0.8]
    assert rates(5, lr_schedule="step", lr_every=2) == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2])
    assert rates(4, lr_schedule="cosine") == pytest.approx([0.8, 0.4 * (1 + 0.5**0.5), 0.4, 0.4 * (1 - 0.5**0.5)])
    assert rates(3, lr_schedule="time", lr_decay=0.5) == pytest.approx([0.8, 0.8 / 1.5, 0.4])


def test_every_stage_has_a_schedule_of_its_own() -> None:
    method = FedHeadPlus(
        LocalSpec(epochs=1, lr=1.0, lr_schedule="step", lr_every=1),
        sector=DistillSpec(epochs=1, lr=1.0),
        server=DistillSpec(epochs=1, lr=1.0, lr_schedule="time", lr_decay=1.0),
    )
    assert method.in_round(1, 9) is method
    later = method.in_round(3, 9)
    assert (later.local.lr, later.sector.lr, later.server.lr) == pytest.approx((0.25, 1.0, 1 / 3))


def test_a_run_takes_the_rate_of_each_round() -> None:
    """One client, one step on all rows in each round, by hand: w ← w − lr · gradient with lr 0.5, then 0.25."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)).astype("float32"), np.arange(12) % 2
    data = hw.Data(x, y, x, y)
    options: dict[str, Any] = {
        "clients": 1,
        "sectors": 1,
        "validation": 0,
        "reference_size": 0,
        "local__epochs": 1,
        "local__batch": 12,
        "local__optimizer": "sgd",
        "local__lr": 0.5,
        "local__lr_schedule": "step",
        "local__lr_every": 1,
    }

    def zeros() -> nn.Module:
        module = nn.Linear(3, 2)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        return module

    found = hw.run("fedavg", data=data, model=zeros, rounds=2, **options).model
    expected = zeros()
    for lr in (0.5, 0.25):
        expected.zero_grad()
        nn.functional.cross_entropy(expected(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        with torch.no_grad():
            for parameter in expected.parameters():
                assert parameter.grad is not None
                parameter -= lr * parameter.grad
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "mtgc", "fedhead"])
def test_a_schedule_that_changes_nothing_changes_no_bit(method: str) -> None:
    flat = hw.run(method, rounds=2, **SMALL, **SGD)
    same = hw.run(method, rounds=2, **SMALL, **SGD, local__lr_schedule="step", local__lr_factor=1.0, local__lr_every=1)
    other = hw.run(method, rounds=2, **SMALL, **SGD, local__lr_schedule="step", local__lr_factor=0.1, local__lr_every=1)
    assert same.result["model_sha256"] == flat.result["model_sha256"]
    assert same.result["ledger"] == flat.result["ledger"]
    assert other.result["model_sha256"] != flat.result["model_sha256"]
    assert other.history[0]["train_loss"] == flat.history[0]["train_loss"], "the first round has the rate itself"
