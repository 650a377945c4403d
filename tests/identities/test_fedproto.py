"""B6 and the other special cases of FedProto."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import chosen
import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedproto import FedProto
from headwater.algorithms.local import Local
from headwater.config import Config
from headwater.core.params import Params
from headwater.errors import ConfigError
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.3)
ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 1, 7))]
MAP = (0, 1, 0, 1, 1)


def two_parts() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)).double()


def personal(method: object, rounds: int = 3, **options: Any) -> dict[str, Params]:
    with toys.lab(method, ROWS, MAP, two_parts, classes=3, **options) as lab:
        for number in range(1, rounds + 1):
            lab.round(number)
        return lab.personal()


def apart(a: dict[str, Params], b: dict[str, Params]) -> float:
    assert a.keys() == b.keys()
    return max(toys.gap(a[c], b[c]) for c in a)


def test_b6_without_prototypes_everybody_is_alone() -> None:
    """B6: λ = 0 is the local reference."""
    assert apart(personal(FedProto(LOCAL, lam=0.0)), personal(Local(LOCAL))) <= 1e-10
    assert apart(personal(FedProto(LOCAL)), personal(Local(LOCAL))) > 1e-3


def test_first_round_is_alone_too() -> None:
    assert apart(personal(FedProto(LOCAL, lam=5.0), 1), personal(Local(LOCAL), 1)) <= 1e-10


@pytest.mark.parametrize("collect", ["after", "during"])
@pytest.mark.parametrize("by", ["samples", "uniform"])
@pytest.mark.parametrize("share", chosen.first([False, True], [True]))
def test_by_way_of_sectors(collect: Any, by: Any, share: bool) -> None:
    method = FedProto(LOCAL, collect=collect, by=by, share_params=share)
    assert apart(personal(method), personal(replace(method, through_sectors=True))) <= 1e-10


def test_each_option_does_something() -> None:
    plain = personal(FedProto(LOCAL), 2)
    for other in ({"distance": "paper"}, {"collect": "during"}, {"by": "uniform"}, {"share_params": True}):
        assert apart(plain, personal(FedProto(LOCAL, **other), 2)) > 1e-5


def test_sharing_parameters_without_prototypes_is_fedavg() -> None:
    found = toys.play(FedProto(LOCAL, lam=0.0, share_params=True), ROWS, MAP, two_parts, 3, classes=3)
    assert toys.gap(found, toys.play(FedAvg(LOCAL), ROWS, MAP, two_parts, 3, classes=3)) <= 1e-10


def test_prototypes_draw_clients_together() -> None:
    """With a strong pull the clients' own means of a class lie nearer to each other than when everybody is alone."""

    def spread(models: dict[str, Params]) -> float:
        found = []
        for label in range(3):
            held = {c: ROWS[int(c[1:])].x[ROWS[int(c[1:])].y == label] for c in models}
            with torch.no_grad():
                nets = {c: models[c].load_into(two_parts()) for c in models}
                found.append(
                    torch.stack([nets[c].features(x).mean(0) for c, x in held.items() if len(x)]).var(0).mean()
                )
        return float(sum(found))

    slow = LocalSpec(epochs=2, batch=4, lr=0.1)
    assert spread(personal(FedProto(slow, lam=3.0), 8)) < 0.5 * spread(personal(Local(slow), 8))


def test_who_sits_out_keeps_its_model() -> None:
    with toys.lab(FedProto(LOCAL), ROWS, MAP, two_parts, classes=3) as lab:
        first = lab.round(1).personal()
        second = lab.round(2, ("c0", "c1")).personal()
    assert torch.equal(second["c2"].vector, first["c2"].vector)
    assert not torch.equal(second["c1"].vector, first["c1"].vector)


# -- unequal nets


def unlike(hidden: int = 4, **algorithm: Any) -> Experiment:
    """Four clients, of which every other one has a linear model."""
    config = Config(
        rounds=2,
        data={"name": "arrays"},
        partition={"clients": 4, "sectors": 2, "scheme": "iid"},
        model={"name": "mlp", "hidden": [hidden], "also": ["linear"]},
        engine={"name": "inline"},
        local={"epochs": 1, "batch": 8},
        algorithm={"name": "fedproto", **algorithm},
    )
    return prepare(config, data=toys.tiny_data())


def test_unequal_nets_with_equal_representations() -> None:
    """A perceptron of 4 hidden units and the linear model on 4 inputs: both have representations of 4 numbers."""
    experiment = unlike()
    assert experiment.tree.archs == ("mlp", "linear")
    found = train(experiment)
    assert {model.layout.arch for model in found.params.values()} == {"mlp", "linear"}
    with toys.lab_of(experiment) as lab:
        lab.round(1)
        known = lab.fed.read(lab.state.prototypes)
    assert all(means[0].shape == (4,) for means in known.values())


def test_unequal_representations_are_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match=r"sizes differ between the nets of model\.also \(mlp 5, linear 4\)"):
        train(unlike(hidden=5))


def test_unequal_nets_are_not_averaged() -> None:
    with pytest.raises(ConfigError, match="share_params averages models"):
        train(unlike(share_params=True))
