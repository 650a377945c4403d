"""What is asked of this machine's libraries, and what follows from their answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from headwater.models.base import ModelSpec
from headwater.specs import LocalSpec
from headwater.tasks.batched import descent, policy
from headwater.training.experiment import Experiment
from headwater.training.loop import train

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
    slopes = descent._slopes

    def changed(output: Tensor, true: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        logs, slope = slopes(output, true, share)
        return logs, slope * (1 + len(output) * 1e-6)

    monkeypatch.setattr(descent, "_slopes", changed)
    monkeypatch.setattr(descent, "compiled", lambda function: function)
    monkeypatch.setattr(policy, "_KNOWN", {})


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in which it certainly does not: every member is computed by itself."""

    def apart(function: Any) -> Any:
        def some(thing: Any, member: slice) -> Any:
            if isinstance(thing, list):
                return [some(part, member) for part in thing]
            return thing[member] if isinstance(thing, Tensor) else thing

        def each(kinds: list[str], *given: Any) -> Tensor:
            members = [slice(at, at + 1) for at in range(len(given[0][0]))]
            return torch.cat([function(kinds, *(some(part, member) for part in given)) for member in members])

        return each

    for name in ("_step", "_gradient"):
        monkeypatch.setattr(descent, name, apart(getattr(descent, name)))
    monkeypatch.setattr(descent, "compiled", lambda function: function)
    monkeypatch.setattr(policy, "_KNOWN", {})


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("width", [2, 3, 16])
@pytest.mark.parametrize("name", SPECS)
def test_a_library_that_computes_members_by_themselves_passes(name: str, width: int) -> None:
    assert policy.same_alone(experiment().model, SPECS[name], width, 1)


@pytest.mark.usefixtures("by_width")
@pytest.mark.parametrize("name", SPECS)
def test_a_library_that_goes_by_the_width_is_found_out(name: str) -> None:
    assert not policy.same_alone(experiment().model, SPECS[name], 16, 1)


@pytest.mark.usefixtures("by_width")
def test_clients_are_then_computed_alone_and_it_says_why() -> None:
    found = experiment(stack="auto")
    assert found.stacking.way == "loop"
    assert "other bits in a stack than alone" in found.stacking.why
    assert train(found).result["stacking"] == found.stacking.to_dict()
    assert experiment(stack="on").stacking.way == "hand"


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_KNOWN", {})
    asked: list[int] = []
    monkeypatch.setattr(policy, "_try", lambda spec, local, width, *_: bool(asked.append(width)) or True)
    for _ in range(3):
        assert policy.same_alone(experiment().model, SPECS["sgd"], 8, 1)
    assert asked == [8]


# -- networks for images


@dataclass
class Method:
    local: LocalSpec

    def uses_features(self) -> bool:
        return False


def found(name: str, asked: str, device: str = "cpu", memory: float = 1024.0, **local: Any) -> policy.Stacking:
    method = Method(replace(LocalSpec(epochs=1, batch=16, lr=0.1), **local))
    spec = ModelSpec(name, (3, 16, 16), 10)
    return policy.stacking(method, {name: spec}, asked, device=torch.device(device), memory=memory)


@pytest.mark.parametrize(
    ("asked", "device", "way"),
    [("auto", "cpu", "loop"), ("on", "cpu", "vmap"), ("auto", "cuda", "vmap"), ("off", "cuda", "loop")],
)
def test_convolutions_are_stacked_by_default_where_it_pays(asked: str, device: str, way: str) -> None:
    """By the configuration alone: this machine need not have the device."""
    assert found("cnn", asked, device).way == way


def test_the_memory_of_a_stack_bounds_its_clients() -> None:
    widths = [found("resnet8", "on", memory=memory).width for memory in (5000.0, 100.0, 50.0)]
    assert widths[0] == policy.WIDEST
    assert widths[0] > widths[1] > widths[2] >= 2
    assert found("resnet8", "on", memory=100.0, batch=32).width < widths[1]
    little = found("resnet8", "on", memory=5.0)
    assert little.way == "loop"
    assert "more than the 5 of engine.stack_memory" in little.why


def test_it_says_which_layer_prevents_a_stack() -> None:
    spec = ModelSpec("bilstm", (7,), 3, {"words": 9}, tokens=True)
    why = policy.stacking(Method(SPECS["sgd"]), {"bilstm": spec}, "on").why
    assert "bilstm has a layer that is not stacked: " in why


def test_augmented_images_are_stacked_for_convolutions_alone() -> None:
    assert found("cnn", "on", augment="flip").way == "vmap"
    assert found("mlp", "on", augment="flip").why == "augmented images are stacked for convolutions alone"
