"""Learning rates that change from round to round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chosen
import headwater as hw
from headwater.algorithms.fedhead import FedHeadPlus
from headwater.config import Config
from headwater.planning.rehearsal import rehearse
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.optimizers import learning_rate
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import Event, train

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


@pytest.mark.parametrize("method", chosen.first(["fedavg", "scaffold", "mtgc", "fedhead"], ["scaffold"]))
def test_a_schedule_that_changes_nothing_changes_no_bit(method: str) -> None:
    flat = hw.run(method, rounds=2, **SMALL, **SGD)
    same = hw.run(method, rounds=2, **SMALL, **SGD, local__lr_schedule="step", local__lr_factor=1.0, local__lr_every=1)
    other = hw.run(method, rounds=2, **SMALL, **SGD, local__lr_schedule="step", local__lr_factor=0.1, local__lr_every=1)
    assert same.result["model_sha256"] == flat.result["model_sha256"]
    assert same.result["ledger"] == flat.result["ledger"]
    assert other.result["model_sha256"] != flat.result["model_sha256"]
    assert other.history[0]["train_loss"] == flat.history[0]["train_loss"], "the first round has the rate itself"


ENGINES = ({"name": "inline"}, {"name": "pool", "workers": 2})
STAGES = ("local", "sector", "server")
COUNTED: dict[str, Any] = {
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"clients": 4, "sectors": 2, "alpha": 1.0},
    "engine": {"name": "inline"},
    "model": {"name": "mlp"},
    **{
        stage: {"epochs": 1 + at, "batch": 16, "lr": 0.01, "lr_schedule": "shared-counter", "lr_time_decay": 0.5}
        for at, stage in enumerate(STAGES)
    },
}


def counted(method: str = "fedhead+", **sections: Any) -> Experiment:
    tables = {**COUNTED, **sections} | {"algorithm": {"name": method, **sections.get("algorithm", {})}}
    unused = set(STAGES[1:]) if method == "hfedavg" else set()
    return prepare(Config(**{key: value for key, value in tables.items() if key not in unused}))


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("fedhead+", {}),
        ("fedhead+", {"partition": COUNTED["partition"] | {"participation": 0.5}}),
        ("fedhead+", {"algorithm": {"val_source": "leader", "leader": "rotating"}}),
        ("hfedavg", {"algorithm": {"sector_rounds": 2}}),
    ],
    ids=["all", "half", "leaders validate", "sector rounds"],
)
def test_a_shared_counter_counts_all_steps_of_all_nodes(method: str, sections: dict[str, Any]) -> None:
    """Every training begins with the rate that follows from the steps planned before it, in the order of the tree."""
    rehearsed = rehearse(counted(method, rounds=3, **sections))
    assert rehearsed is not None
    trainings, taken = [work for work in rehearsed.works if work.cost.steps], 0
    for work in trainings:
        spec = work.job.inputs["spec"]
        assert spec.lr == pytest.approx(0.01 / (1 + 0.5 * taken), rel=1e-12), (work.job.key, taken)
        assert learning_rate(spec, 3, 9) == pytest.approx(0.01 / (1 + 0.5 * (taken + 3)), rel=1e-12)
        taken += work.cost.steps
    assert {work.job.key[0] for work in trainings} == {1, 2, 3}
    assert taken > 50


@pytest.mark.thorough
def test_a_shared_counter_gives_equal_bits_on_every_engine() -> None:
    shas = [train(counted(rounds=2, engine=engine)).result["model_sha256"] for engine in ENGINES]
    assert shas[0] == shas[1]


def test_a_shared_counter_goes_on_after_a_pause(tmp_path: Path) -> None:
    whole = train(counted(rounds=3))

    def stop(event: Event) -> None:
        if event.kind == "round" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(counted(rounds=3), out=tmp_path, watch=stop)
    resumed = train(counted(rounds=3), out=tmp_path)
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]
    own = {stage: COUNTED[stage] | {"lr_schedule": "constant"} for stage in STAGES}
    assert train(counted(rounds=3, **own)).result["model_sha256"] != whole.result["model_sha256"]


def test_fedheads_program_on_cifar10() -> None:
    """About 7 500 local steps a round: 1e-3 has fallen to about 1e-4 by round 10."""
    spec = LocalSpec(epochs=20, batch=128, lr=1e-3, lr_schedule="shared-counter", lr_time_decay=1e-4)
    assert [round(spec.after(7500 * done).lr, 6) for done in (0, 10, 50)] == [1e-3, 1.18e-4, 2.6e-5]
    assert replace(spec, lr_schedule="constant").after(7500).lr == 1e-3


def test_a_shared_counter_needs_a_decay() -> None:
    with pytest.raises(hw.ConfigError, match="give lr_time_decay, for example 1e-4"):
        LocalSpec(epochs=1, lr_schedule="shared-counter")
