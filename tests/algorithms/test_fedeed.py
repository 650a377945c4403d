"""FedEED with local training by cohort."""

from __future__ import annotations

from typing import Any

import pytest

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedeed import FedEed
from headwater.algorithms.fedprox import FedProx
from headwater.config import Config
from headwater.core.sampling import deal
from headwater.errors import ConfigError
from headwater.specs import DistillSpec, LocalSpec
from headwater.training.experiment import prepare

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.2)
TAUGHT = DistillSpec(steps=2, batch=8, optimizer="sgd", lr=0.2, mix="logits", weights="uniform")
CLIENTS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 7, 3))]
SECTORS = (0, 1, 0, 1, 1)
AROUND: dict[str, Any] = {"classes": 3, "reference": toys.blobs(20, seed=50).x, "validation": toys.blobs(15, seed=51)}
OWN = ({"mu": 0.5}, {"steps": 1, "lr": 0.05})


def models(method: Any, rounds: int = 1) -> tuple[list[Any], list[Any]]:
    """All models after some rounds, and the cohorts of the first round."""
    with toys.lab(method, CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        dealt = None
        for number in range(1, rounds + 1):
            lab.round(number)
            dealt = dealt or deal(lab.tree.holders, 2, lab.fed.rng("cohorts"))
        assert dealt is not None
        return [lab.fed.read(model) for model in lab.state.models.values()], list(dealt.values())


def test_each_cohort_trains_in_its_own_way() -> None:
    """The first model is what FedProx makes of it with the first cohort, the second what another [local] makes."""
    method = FedEed(LOCAL, TAUGHT, 2, consolidate="none", by_cohort=OWN)
    found, dealt = models(method)
    with toys.lab(FedProx(LOCAL, 0.5), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        assert toys.gap(found[0], lab.round(1, dealt[0]).vector) == 0
    plain, _ = models(FedEed(LOCAL, TAUGHT, 2, consolidate="none"))
    short, _ = models(FedEed(LocalSpec(steps=1, batch=4, lr=0.05), TAUGHT, 2, consolidate="none"))
    assert toys.gap(found[1], short[1]) == 0
    assert toys.gap(found[1], plain[1]) > 1e-4
    with toys.lab(FedAvg(LOCAL), CLIENTS, SECTORS, toys.net, **AROUND) as lab:
        assert toys.gap(found[0], lab.round(1, dealt[0]).vector) > 1e-6  # the pull is felt


def test_tables_without_keys_are_no_tables() -> None:
    several, plain = (models(FedEed(LOCAL, TAUGHT, 2, 2, **own), 2)[0] for own in ({"by_cohort": ({}, {})}, {}))
    assert [toys.gap(a, b) for a, b in zip(several, plain, strict=True)] == [0.0, 0.0]


def test_schedules_hold_for_every_cohort() -> None:
    falling = LocalSpec(epochs=1, lr=0.4, lr_schedule="step", lr_every=1)
    third = FedEed(falling, TAUGHT, 2, by_cohort=({"lr": 0.1}, {})).in_round(3, 5)
    assert [third.trainer(k)[0].lr for k in (0, 1)] == [0.025, 0.1]


def test_from_a_configuration() -> None:
    """As a TOML array of tables, written back and read again."""
    made = toys.tiny("fedeed", algorithm={"cohorts": 2, "by_cohort": [{"mu": 0.1}, {"epochs": 3}]})
    again = type(made.config).from_toml(made.config.to_toml())
    assert again.algorithm["by_cohort"] == made.config.algorithm["by_cohort"]
    assert made.method.trainer(1)[0].epochs == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ([{}], "by_cohort has 1 tables for 2 cohorts"),
        ([{}, {"epoch": 1}], r"by_cohort 1: there is no 'epoch'.*did you mean"),
        ([{"mu": -1}, {}], "mu must be a number of at least 0"),
        ([{"lr": -1.0}, {}], "by_cohort 0: .*lr"),
        ([{"epochs": 1, "steps": 1}, {}], "give either epochs or steps"),
        (3, r"algorithm\.by_cohort must be a list"),
    ],
)
def test_mistakes_are_sentences(tables: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        toys.tiny("fedeed", algorithm={"cohorts": 2, "by_cohort": tables})


@pytest.mark.parametrize("method", ["fedeed", "fedbe"])
def test_a_number_of_steps_does_not_turn_on_early_stopping(method: str) -> None:
    """Neither method stops early by default. Those that do count in steps then: FedDF."""
    for name, patience in ((method, None), ("feddf", 1000)):
        config = prepare(Config.load(name, ["server.steps=2", "partition.clients=4"])).config
        assert config.server["patience"] == patience
