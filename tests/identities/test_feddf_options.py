"""FedDF's pull at clients, its filter without distillation, and what is tested before fusion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.feddf import FedDf
from headwater.algorithms.fedprox import FedProx
from headwater.config import Config
from headwater.errors import ConfigError
from headwater.specs import DistillSpec, LocalSpec
from headwater.training.experiment import prepare
from headwater.training.loop import train

LOCAL = LocalSpec(steps=5, batch=8, lr=0.3)
SOME = DistillSpec(epochs=3, batch=8, optimizer="sgd", lr=0.2, mix="logits", weights="uniform")
NONE = replace(SOME, epochs=0)
CLIENTS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9))]
AROUND = {"classes": 3, "reference": toys.blobs(20, seed=50).x, "validation": toys.blobs(30, seed=9)}


def play(method: object, rounds: int = 2) -> object:
    return toys.play(method, CLIENTS, (0, 1, 0), toys.net, rounds, **AROUND)


def test_with_a_pull_and_no_steps_it_is_fedprox() -> None:
    pulled = FedDf(LOCAL, NONE, drop_worst=False, mu=0.7)
    assert toys.gap(play(pulled), play(FedProx(LOCAL, mu=0.7))) <= 1e-12
    assert toys.gap(play(replace(pulled, mu=0.0)), play(FedAvg(LOCAL))) <= 1e-12
    assert toys.gap(play(pulled), play(replace(pulled, mu=0.0))) > 1e-3


def test_a_pull_changes_what_is_taught() -> None:
    assert toys.gap(play(FedDf(LOCAL, SOME, mu=0.7)), play(FedDf(LOCAL, SOME))) > 1e-3


def test_testing_before_fusion_changes_nothing_but_the_rows() -> None:
    plain, shown = (
        toys.tiny_run("feddf", algorithm={"before_fusion": asked}, local={"epochs": 3}) for asked in (False, True)
    )
    assert plain.result["model_sha256"] == shown.result["model_sha256"]
    assert not {"average_accuracy", "ensemble_accuracy"} & set(plain.history[0])
    for row, other in zip(shown.history, plain.history, strict=True):
        assert row["accuracy"] == other["accuracy"]
        assert {"average_accuracy", "ensemble_accuracy"} <= set(row)
    assert shown.result["average_accuracy"] == shown.history[-1]["average_accuracy"]


def test_the_average_before_the_first_fusion_is_fedavgs_model() -> None:
    """From the same start and with the same draws, so to the last sample."""
    options = {"local": {"epochs": 3, "lr": 0.3, "optimizer": "sgd"}, "rounds": 1}
    shown = toys.tiny_run("feddf", algorithm={"before_fusion": True, "drop_worst": False}, **options)
    assert shown.history[0]["average_accuracy"] == toys.tiny_run("fedavg", **options).history[0]["accuracy"]


@pytest.mark.parametrize("drop_worst", [True, False])
def test_the_teachers_are_tested_together(drop_worst: bool) -> None:
    """Without a step and with linear models of equal clients, the mean of logits is the mean model: equal accuracy."""
    algorithm = {"before_fusion": True, "drop_worst": drop_worst, "by": "uniform"}
    run = toys.tiny_run("feddf", algorithm=algorithm, model=lambda: nn.Linear(4, 3), server={"epochs": 0})
    for row in run.history:
        assert row["ensemble_accuracy"] == row["average_accuracy"] == row["accuracy"]


def test_every_architecture_has_its_average() -> None:
    asked = {"algorithm": {"name": "feddf", "before_fusion": True}, "model": {"name": "mlp", "also": ["linear"]}}
    short = {"local": {"epochs": 1}, "server": {"epochs": 1}, "engine": {"name": "inline"}}
    run = train(prepare(Config(data={"name": "arrays"}, rounds=1, **asked, **short), data=toys.tiny_data()))
    told = {"accuracy", "linear_accuracy", "average_accuracy", "linear_average_accuracy", "ensemble_accuracy"}
    assert told <= set(run.history[-1])


def test_before_fusion_needs_an_average() -> None:
    with pytest.raises(ConfigError, match="before_fusion tests the average"):
        FedDf(before_fusion=True, init_from="previous")


def test_how_many_teach_is_noted() -> None:
    run = toys.tiny_run("feddf", algorithm={"swag": 2, "drop_worst": False})
    assert [row["distill"]["server"]["teachers"] for row in run.history] == [7.0, 7.0]
