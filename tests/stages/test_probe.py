"""What is asked of this machine's libraries, and what follows from their answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from headwater.experiment import Experiment
from headwater.specs import LocalSpec
from headwater.stages import probe
from headwater.stages.kernels import Chain
from headwater.training import train

SPECS = {
    "sgd": LocalSpec(epochs=1, batch=4, lr=0.1),
    "adam": LocalSpec(epochs=1, batch=4, optimizer="adam", lr=0.01),
    "clip": LocalSpec(epochs=1, batch=4, lr=0.1, clip=0.1),
}


def experiment(**engine: Any) -> Experiment:
    return toys.tiny("fedavg", engine=engine)


@pytest.fixture
def by_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in which a member's numbers depend on how many others there are."""
    forward = Chain._forward

    def changed(self: Chain, layers: Any, x: Tensor, y: Tensor, share: Tensor) -> Any:
        passed, loss, slope = forward(self, layers, x, y, share)
        return passed, loss, slope * (1 + len(x) * 1e-6)

    monkeypatch.setattr(Chain, "_forward", changed)
    monkeypatch.setattr(probe, "_KNOWN", {})


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in which it certainly does not: every member is computed by itself."""
    descend, gradient = Chain.descend, Chain.gradient

    def each_descends(self: Chain, layers: Any, x: Tensor, y: Tensor, share: Tensor, lr: float) -> Tensor:
        def of(at: int) -> Any:
            some = slice(at, at + 1)
            return [None if h is None else (h[0][some], None if h[1] is None else h[1][some]) for h in layers]

        parts = [(of(at), x[at : at + 1].clone(), y[at : at + 1], share[at : at + 1]) for at in range(len(x))]
        return torch.cat([descend(self, *part, lr) for part in parts])

    def each_gradient(self: Chain, weights: Tensor, x: Tensor, y: Tensor, share: Tensor, out: Tensor) -> Tensor:
        rows = [slice(at, at + 1) for at in range(len(x))]
        return torch.cat([gradient(self, weights[r], x[r].clone(), y[r], share[r], out[r]) for r in rows])

    monkeypatch.setattr(Chain, "descend", each_descends)
    monkeypatch.setattr(Chain, "gradient", each_gradient)
    monkeypatch.setattr(probe, "_KNOWN", {})


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("width", [2, 3, 16])
@pytest.mark.parametrize("name", SPECS)
def test_a_library_that_computes_members_by_themselves_passes(name: str, width: int) -> None:
    assert probe.same_alone(experiment().model, SPECS[name], width, 1)


@pytest.mark.usefixtures("by_width")
@pytest.mark.parametrize("name", SPECS)
def test_a_library_that_goes_by_the_width_is_found_out(name: str) -> None:
    assert not probe.same_alone(experiment().model, SPECS[name], 16, 1)


@pytest.mark.usefixtures("by_width")
def test_clients_are_then_computed_alone_and_it_says_why() -> None:
    found = experiment(stack="auto")
    assert found.stacking.way == "loop"
    assert "other bits in a stack than alone" in found.stacking.why
    assert train(found).result["stacking"] == found.stacking.to_dict()
    assert experiment(stack="on").stacking.way == "hand"


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_KNOWN", {})
    asked: list[int] = []
    monkeypatch.setattr(probe, "_try", lambda spec, local, width: bool(asked.append(width)) or True)
    for _ in range(3):
        assert probe.same_alone(experiment().model, SPECS["sgd"], 8, 1)
    assert asked == [8]
