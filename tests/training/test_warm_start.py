"""Warm start from Python: `hw.run(start=…)`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headwater as hw
from headwater.errors import ConfigError, HeadwaterError

SMALL = {"clients": 3, "sectors": 1, "rounds": 1, "local__epochs": 1, "alpha": 10.0, "engine": "inline"}


def test_a_run_without_training_returns_the_model_that_it_started_from(tmp_path: Path) -> None:
    first = hw.run("fedavg", out=tmp_path / "a", **SMALL)
    again = hw.run("fedavg", start=str(tmp_path / "a"), **SMALL | {"local__epochs": 0})
    assert again.result["start"]["model_sha256"] == first.result["model_sha256"]
    assert torch.equal(again.params[""].vector, first.params[""].vector)


def test_another_number_of_classes_is_named(tmp_path: Path) -> None:
    hw.run("fedavg", out=tmp_path / "a", model="linear", **SMALL)
    x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
    with pytest.raises(ConfigError, match=r"number of classes \(10 there, 3 here\)"):
        hw.run("fedavg", data=hw.Data(x, y, x, y), model="linear", start=str(tmp_path / "a"), **SMALL)


@pytest.mark.parametrize("start", ["nowhere", "a\0b", "x" * 5000])
def test_a_start_that_is_not_there_is_refused_in_a_sentence(start: str) -> None:
    with pytest.raises(HeadwaterError, match="start"):
        hw.run("fedavg", start=start, **SMALL)
