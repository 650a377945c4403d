"""FedGen against FedAvg, its schedule, and who gets the generator when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.fedgen import GENERATOR, FedGen
from headwater.core.params import Params
from headwater.core.tree import Tree
from headwater.errors import ConfigError
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.training.loop import train

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.2)
ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((9, 5, 7))]
SMALL: dict[str, Any] = {"gen_epochs": 3, "gen_batch": 8, "gen_hidden": 6, "noise_dim": 2}


def net() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)).double()


def lab(method: FedGen) -> toys.Lab:
    around = toys.context(ROWS, net, classes=3)
    own = method.models(around.models[toys.ARCH])
    return toys.Lab(method, replace(around, models=around.models | own), Tree.of([9, 5, 7], [0, 1, 1]))


def play(rounds: int = 3, **options: Any) -> Params:
    made = lab(FedGen(LOCAL, **(SMALL | options)))
    for number in range(1, rounds + 1):
        made.round(number)
    found = made.model
    made.close()
    return found


@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_b7_without_the_terms(by: str) -> None:
    """B7: gen_alpha = gen_beta = 0 is FedAvg, whatever the floor; each of them alone makes another run."""
    plain = toys.play(FedAvg(LOCAL, by=by), ROWS, (0, 1, 1), net, 3, classes=3)
    assert toys.gap(play(gen_alpha=0.0, gen_beta=0.0, by=by), plain) <= 1e-10
    assert toys.gap(play(gen_alpha=1.0, gen_beta=0.0, by=by), plain) > 1e-3
    assert toys.gap(play(gen_alpha=0.0, gen_beta=1.0, by=by), plain) > 1e-3


def test_first_round_and_epochs_after_the_last_are_plain() -> None:
    """Clients have no generator in round 1, and none is used when regularisation ends before the first epoch."""
    plain = [toys.play(FedAvg(LOCAL), ROWS, (0, 1, 1), net, rounds, classes=3) for rounds in (1, 3)]
    assert toys.gap(play(rounds=1), plain[0]) <= 1e-10
    assert toys.gap(play(regularized=0), plain[1]) <= 1e-10
    assert toys.gap(play(regularized=1), play(regularized=2)) > 1e-4, "the second epoch counts"


def test_decay_and_floor() -> None:
    """In round 2 alpha is alpha · decay, but not below the floor: the generator of round 1 is the same in all these."""
    still = {"gen_epochs": 0, "gen_beta": 0.0}
    half = play(2, gen_alpha=4.0, decay=0.5, **still)
    assert toys.gap(half, play(2, gen_alpha=2.0, decay=1.0, **still)) <= 1e-12
    assert toys.gap(play(2, gen_alpha=4.0, decay=1e-6, floor=2.0, **still), half) <= 1e-12
    assert toys.gap(play(2, gen_alpha=4.0, decay=0.25, **still), half) > 1e-4


def test_the_generator_is_taught_every_round_and_stays_at_the_server() -> None:
    made = lab(FedGen(LOCAL, **SMALL))
    found = [made.fed.read(made.state.generator)]
    for number in (1, 2):
        found.append(made.round(number).fed.read(made.state.generator))
    made.close()
    assert all(generator.layout.arch == GENERATOR for generator in found)
    assert toys.gap(found[0], found[1]) > 1e-4 < toys.gap(found[1], found[2])


def test_moves() -> None:
    """It goes down in round 2 for the first time; label counts go up in each."""
    found = train(toys.tiny("fedgen", algorithm={**SMALL, "gen_hidden": 6}))
    rows = {
        (r["from"], r["to"], r["kind"]): r["count"] for r in found.ledger.summary()["moves"] if r["purpose"] == "train"
    }
    assert rows["server", "client", "model"] == 5 + 5 + 5  # the model twice, the generator once
    assert rows["client", "server", "array"] == 5 + 5
    first, second = (row["bytes"]["server_sector"]["down"] for row in found.history)
    size = 4 * ((2 + 3) * 6 + 6 + 2 * 6 + 6 * 4 + 4 + 2 * 6 + 3) + 8  # weights, statistics, list of classes, counter
    assert second - first == 5 * size


def test_loss_falls_on_what_is_drawn() -> None:
    """After some rounds the global classifier takes drawn features for what they were drawn for."""
    made = lab(FedGen(LOCAL, **(SMALL | {"gen_epochs": 40, "gen_lr": 0.02, "gen_batch": 16})))
    for number in range(1, 4):
        made.round(number)
    ctx = toys.ctx(made.context, "server")
    y = torch.arange(3).repeat(30)
    torch.manual_seed(0)
    drawn = ctx.flat_module(made.fed.read(made.state.generator)).module.eval().draw(y)[1]
    guess = ctx.flat_module(made.model).classify(drawn).argmax(1)
    made.close()
    assert float((guess == y).double().mean()) > 0.9


def test_refuses_what_has_no_linear_classifier() -> None:
    maker = lambda: Net(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)))  # noqa: E731
    with pytest.raises(ConfigError, match="fedgen draws features for a linear `classifier`"):
        train(toys.tiny("fedgen", model=maker))
