"""MOON against FedAvg, and what its clients keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import toys
from headwater.algorithms.fedavg import FedAvg
from headwater.algorithms.moon import Moon
from headwater.config import Config
from headwater.core.federation import SERVER
from headwater.core.params import Params
from headwater.errors import ConfigError
from headwater.models.base import Net
from headwater.specs import LocalSpec
from headwater.tasks.terms import OWN, Contrast
from headwater.training.experiment import prepare

LOCAL = LocalSpec(epochs=2, batch=4, lr=0.2)
ROWS = [toys.blobs(n, seed=i) for i, n in enumerate((9, 5, 7))]


def net() -> nn.Module:
    return Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)).double()


def play(method: Any, rounds: int = 3) -> Params:
    return toys.play(method, ROWS, (0, 1, 1), net, rounds, classes=3)


@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_b5_without_the_term(by: str) -> None:
    """B5: mu = 0 is FedAvg, with it the run is another."""
    plain = play(FedAvg(LOCAL, by=by))
    assert toys.gap(play(Moon(LOCAL, mu=0.0, by=by)), plain) <= 1e-10
    assert toys.gap(play(Moon(LOCAL, by=by)), plain) > 1e-3


def test_first_round_against_the_received_model_is_plain() -> None:
    """In round 1 initial and received model are one, so nothing pulls; from round 2 on `first` matters to nobody."""
    assert toys.gap(play(Moon(LOCAL), rounds=1), play(FedAvg(LOCAL), rounds=1)) <= 1e-10
    assert toys.gap(play(Moon(LOCAL, first="received")), play(Moon(LOCAL))) <= 1e-12


def test_a_first_model_of_their_own() -> None:
    """With `first = "own"` each client has another one, so that the term pulls from the first round on."""
    around = toys.context(ROWS, net, classes=3)
    start = around.initial(toys.ARCH, 0)
    known = []
    for client in ("c0", "c1"):
        ctx = toys.ctx(around, client)
        term = Contrast(1.0, 0.5, first="own").begin(ctx, start)
        assert term.known is not None
        drawn = ctx.initial(toys.ARCH, OWN + int(client[1:]))
        assert ctx.data is not None
        torch.testing.assert_close(term.known[1], F.normalize(ctx.flat_module(drawn).represent(ctx.data.x), dim=1))
        known.append(drawn)
    assert toys.gap(known[0], known[1]) > 1e-2
    assert toys.gap(known[0], start) > 1e-2
    assert toys.gap(play(Moon(LOCAL, first="own"), rounds=1), play(FedAvg(LOCAL), rounds=1)) > 1e-4


def kept(lab: toys.Lab) -> dict[str, tuple[Params, ...]]:
    whole = lab.fed.whole.with_purpose("export")
    found: dict[str, tuple[Params, ...]] = whole.read(whole.up(lab.state.previous, to=SERVER))
    return found


def test_clients_keep_their_own_last_models() -> None:
    """Nothing before they took part; two at most here, newest first; who sits out keeps what it has."""
    with toys.lab(Moon(LOCAL, remembered=2), ROWS, (0, 1, 1), net, classes=3) as lab:
        assert not lab.state.previous.nodes
        lab.round(1, ("c0", "c1"))
        first = kept(lab)
        assert {client: len(models) for client, models in first.items()} == {"c0": 1, "c1": 1}
        mean = (9 * first["c0"][0].vector + 5 * first["c1"][0].vector) / 14
        assert toys.gap(lab.model, mean) <= 1e-12, "what they keep is what they sent"
        lab.round(2, ("c1", "c2"))
        second = kept(lab)
        assert {client: len(models) for client, models in second.items()} == {"c0": 1, "c1": 2, "c2": 1}
        assert torch.equal(second["c0"][0].vector, first["c0"][0].vector)
        assert torch.equal(second["c1"][1].vector, first["c1"][0].vector)
        lab.round(3, ("c1",))
        third = kept(lab)["c1"]
        assert len(third) == 2
        assert torch.equal(third[1].vector, second["c1"][0].vector)


def test_a_newcomer_meets_the_initial_model() -> None:
    """c2 first takes part in round 2, where the received model is not the initial one: then `first` matters."""
    found = []
    for first in ("initial", "received"):
        with toys.lab(Moon(LOCAL, first=first), ROWS, (0, 1, 1), net, classes=3) as lab:  # type: ignore[arg-type]
            found.append(lab.round(1, ("c0",)).round(2, ("c2",)).model)
    with toys.lab(FedAvg(LOCAL), ROWS, (0, 1, 1), net, classes=3) as lab:
        plain = lab.round(1, ("c0",)).round(2, ("c2",)).model
    assert toys.gap(found[1], plain) <= 1e-10
    assert toys.gap(found[0], plain) > 1e-4


def test_gets_a_projection_unless_told_otherwise() -> None:
    assert toys.tiny("moon").model.projection == 256
    config = Config(algorithm={"name": "moon"}, data={"name": "arrays"}, model={"projection": 0})
    assert prepare(config, data=toys.tiny_data()).model.projection == 0


def test_needs_a_model_in_two_parts() -> None:
    with pytest.raises(ConfigError, match="'moon' needs a model in two parts"):
        toys.tiny("moon", model=lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1)))
