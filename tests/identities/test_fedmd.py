"""B12 and the other special cases of FedMD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedmd import FedMd, Rows
from headwater.algorithms.local import Local
from headwater.config import Config
from headwater.core.params import Params
from headwater.errors import ConfigError
from headwater.specs import LocalSpec
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.3)
FULL = LocalSpec(steps=2, batch=99, lr=0.3)
ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 1, 7))]
MAP = (0, 1, 0, 1, 1)
REFERENCE = toys.blobs(20, seed=50).x


def personal(method: object, rounds: int = 2, clients: int = 5) -> dict[str, Params]:
    with toys.lab(method, ROWS[:clients], MAP[:clients], toys.net, classes=3, reference=REFERENCE) as lab:
        for number in range(1, rounds + 1):
            lab.round(number)
        return lab.personal()


def play(method: object, rounds: int = 2) -> Params:
    return toys.play(method, ROWS, MAP, toys.net, rounds, classes=3, reference=REFERENCE)


def apart(a: dict[str, Params], b: dict[str, Params]) -> float:
    assert a.keys() == b.keys()
    return max(toys.gap(a[c], b[c]) for c in a)


def test_b12_one_client_agrees_with_itself() -> None:
    """B12: the consensus is its own word, so digesting does nothing: one training more than being alone."""
    assert apart(personal(FedMd(FULL), 2, clients=1), personal(Local(FULL), 3, clients=1)) <= 1e-10
    assert apart(personal(FedMd(FULL), 2), personal(Local(FULL), 3)) > 1e-4


def test_without_digesting_everybody_is_alone() -> None:
    assert apart(personal(FedMd(FULL, digest_epochs=0)), personal(Local(FULL), 3)) <= 1e-10


@pytest.mark.parametrize("flavour", ["original", "fedhead", "fedhkd"])
def test_by_way_of_sectors(flavour: Any) -> None:
    method = FedMd(LOCAL, flavour=flavour, align=7)
    assert apart(personal(method, 3), personal(replace(method, through_sectors=True), 3)) <= 1e-10


def test_clients_count_alike_in_the_consensus() -> None:
    """c0 with its 12 rows has no more to say than c3 with one: the consensus is the plain mean of all five."""
    with toys.lab(FedMd(LOCAL, flavour="fedhead"), ROWS, MAP, toys.net, classes=3, reference=REFERENCE) as lab:
        consensus = lab.round(1).fed.read(lab.state.consensus)
        local = lab.personal()
    x = Rows(5000).of(REFERENCE)
    with torch.no_grad():
        said = torch.stack([model.load_into(toys.net())(x) for model in local.values()])
    assert toys.gap(consensus, said.mean(0)) <= 1e-12
    weights = torch.tensor([float(len(ROWS[int(c[1:])])) for c in local], dtype=torch.float64)
    assert toys.gap(consensus, (weights[:, None, None] * said).sum(0) / weights.sum()) > 1e-3


def test_digesting_brings_clients_together_on_public_data() -> None:
    def spread(models: dict[str, Params]) -> float:
        with torch.no_grad():
            return float(torch.stack([m.load_into(toys.net())(REFERENCE) for m in models.values()]).var(0).mean())

    agreeing = FedMd(LOCAL, digest_epochs=20, digest_lr=0.02, digest_batch=5)
    assert spread(personal(agreeing, 3)) < 0.7 * spread(personal(Local(LOCAL), 4))


def test_rows_are_drawn_anew_each_round() -> None:
    """With fewer rows than there are, the second round speaks of others; with all of them nothing is drawn."""
    with toys.lab(FedMd(LOCAL, align=4), ROWS, MAP, toys.net, classes=3, reference=REFERENCE) as lab:
        drawn = []
        for number in (1, 2):
            fed = lab.fed.begin(number, lab.tree.holders)
            drawn.append(Rows(4, int(fed.rng("align").integers(2**31))).of(REFERENCE))
    assert not torch.equal(*drawn)
    few, all_of = FedMd(LOCAL, align=4), FedMd(LOCAL)
    assert apart(personal(few, 1), personal(all_of, 1)) > 1e-6


def test_as_in_fedhkd_without_a_term_is_fedavg() -> None:
    assert toys.gap(play(FedMd(LOCAL, flavour="fedhkd", lam=0.0), 3), play(FedAvg(LOCAL), 3)) <= 1e-10
    assert toys.gap(play(FedMd(LOCAL, flavour="fedhkd"), 1), play(FedAvg(LOCAL), 1)) <= 1e-10
    assert toys.gap(play(FedMd(LOCAL, flavour="fedhkd", lam=1.0), 2), play(FedAvg(LOCAL), 2)) > 1e-4


def test_as_in_fedhead_without_digesting_is_fedavg() -> None:
    assert toys.gap(play(FedMd(LOCAL, flavour="fedhead", digest_epochs=0), 3), play(FedAvg(LOCAL), 3)) <= 1e-10
    assert toys.gap(play(FedMd(LOCAL, flavour="fedhead"), 1), play(FedAvg(LOCAL), 1)) <= 1e-10
    assert toys.gap(play(FedMd(LOCAL, flavour="fedhead"), 2), play(FedAvg(LOCAL), 2)) > 1e-5


# -- whole runs


def test_unequal_nets_agree() -> None:
    found = train(_with_linear())
    assert {model.layout.arch for model in found.params.values()} == {"mlp", "linear"}
    assert found.result["ledger"]["server_sector"]["up_models"] == 0


def _with_linear(**algorithm: Any) -> Experiment:
    config = Config(
        rounds=2,
        data={"name": "arrays"},
        partition={"clients": 4, "sectors": 2, "scheme": "iid"},
        model={"name": "mlp", "hidden": [4], "also": ["linear"]},
        engine={"name": "inline"},
        local={"epochs": 1, "batch": 8},
        algorithm={"name": "fedmd", **algorithm},
    )
    return prepare(config, data=toys.tiny_data())


def test_flavours_that_average_refuse_unequal_nets() -> None:
    with pytest.raises(ConfigError, match="flavour = 'fedhkd' averages models"):
        train(_with_linear(flavour="fedhkd"))


def test_public_labels() -> None:
    """A part set aside has labels, and pre-training uses them; noise has none, which is refused only if asked for."""
    plain, none = (toys.tiny_run("fedmd", algorithm=a) for a in ({}, {"pretrain_epochs": 0}))
    assert plain.result["model_sha256"] != none.result["model_sha256"]
    noise = {"data": {"reference": "noise", "reference_size": 12}}
    assert toys.tiny_run("fedmd", **noise).accuracy >= 0
    with pytest.raises(ConfigError, match=r"pretrain_epochs = 2 needs public data with labels"):
        toys.tiny_run("fedmd", algorithm={"pretrain_epochs": 2}, **noise)


def test_needs_a_public_set() -> None:
    with pytest.raises(ConfigError, match=r"data\.reference_size above 0"):
        toys.tiny_run("fedmd", data={"reference_size": 0})
