"""A method that needs only sums may be summed at sectors on the way: the same numbers, less on the long link."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import chosen
import toys
from headwater.algorithms import ALGORITHMS
from headwater.core.federation import CLIENTS, SERVER
from headwater.models.base import Net
from headwater.specs import DistillSpec, LocalSpec

METHODS = [m for m in ALGORITHMS if "through_sectors" in {f.name for f in dataclasses.fields(ALGORITHMS.load(m))}]
CLIENTS_HERE = [toys.blobs(n, seed=i) for i, n in enumerate((12, 5, 9, 7, 1))]
SECTORS = [0, 0, 1, 1, 1]
STAGES = {
    "local": LocalSpec(steps=4, batch=8, lr=0.1),
    "server": DistillSpec(steps=3, batch=8, optimizer="sgd", lr=0.2),
}


def net() -> nn.Module:
    """In two parts, without batch norm, in double precision."""
    made = Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3))
    return made.double()


def options_of(kind: Any) -> dict[str, Any]:
    named = {f.name for f in dataclasses.fields(kind)}
    averaged = {"ensemble": "aggregated", "cohorts": 2, "training": STAGES["local"]} if "training" in named else {}
    return {stage: spec for stage, spec in STAGES.items() if stage in named and "training" not in named} | averaged


def values(lab: toys.Lab) -> list[Tensor]:
    """All models that a state shows."""
    state, fed = lab.state, lab.fed.whole.with_purpose("export")
    team = getattr(state, "team", None)
    handles = [state.model] if state.model is not None else []
    handles += list(team.members.values()) if team is not None else []
    found = [fed.read(handle) for handle in handles]
    if getattr(state, "personal", None) is not None and state.personal.place is CLIENTS:
        found += fed.read(fed.up(state.personal, to=SERVER)).values()
    return [model.vector for model in found]


def after(method: Any, rounds: int, half: bool) -> tuple[list[Tensor], toys.Lab]:
    around = {"classes": 3, "reference": toys.blobs(20, seed=50).x, "validation": toys.blobs(15, seed=51)}
    with toys.lab(method, CLIENTS_HERE, SECTORS, net, **around) as lab:
        for number in range(1, rounds + 1):
            lab.round(number, lab.tree.holders[number % 2 :: 2] if half else None)
        return values(lab), lab


@pytest.mark.parametrize(
    "half", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["everybody", "half of them"]
)
@pytest.mark.parametrize("method", chosen.first(METHODS, chosen.CHOSEN))
def test_equal_to_the_flat_form(method: str, half: bool) -> None:
    """To 1e-10 in double precision, after three rounds, with everybody and with changing halves."""
    kind = ALGORITHMS.load(method)
    given = options_of(kind)
    flat, _ = after(kind(**given), 3, half)
    staged, lab = after(kind(**given, through_sectors=True), 3, half)
    assert len(flat) == len(staged) > 0
    assert max(toys.gap(a, b) for a, b in zip(flat, staged, strict=True)) <= 1e-10
    assert all(torch.isfinite(vector).all() for vector in staged)
    long_link = lab.ledger.bytes("server_sector", "up")
    assert long_link <= lab.ledger.bytes("sector_client", "up")


def test_which_methods_have_it() -> None:
    assert {"fedavg", "fedprox", "scaffold", "feddyn", "fedavgm", "moon"} <= set(METHODS)
