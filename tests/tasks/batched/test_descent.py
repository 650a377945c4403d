"""The same operations by TorchScript as by Python, to the last bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from headwater.tasks.batched import descent

KINDS = {
    "one layer": ["linear"],
    "relu": ["linear", "relu", "linear"],
    "tanh": ["linear", "tanh", "linear"],
    "sigmoid": ["linear", "sigmoid", "relu", "linear"],
    "activation first": ["relu", "linear", "relu"],
}
WIDTHS = [7, 5, 3]
MEMBERS, STEPS, PLACES, ROWS = 4, 6, 5, 40


def layers(kinds: list[str], bias: bool) -> tuple[list[Tensor], list[Tensor | None]]:
    count = kinds.count("linear")
    sizes = [*WIDTHS[:count], 3]
    weights = [torch.randn(MEMBERS, b, a) for a, b in pairwise(sizes)]
    return weights, [torch.randn(MEMBERS, w.shape[1]) if bias else None for w in weights]


def batches() -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their labels and shares by (step, member, place)."""
    index = torch.randint(0, ROWS, (STEPS, MEMBERS, PLACES))
    return index, torch.randint(0, 3, index.shape), torch.rand(index.shape)


@pytest.fixture
def script() -> None:
    if descent.compiled(descent._descend) is descent._descend:
        pytest.skip("this torch has no TorchScript, so there is nothing to compare")


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_script_and_python_descend_to_the_same_bits(kinds: list[str], bias: bool) -> None:
    """Members leave one after the other, and the last is alone for a while."""
    torch.manual_seed(0)
    table, (index, labels, share), counts = torch.randn(ROWS, 7), batches(), [4, 4, 3, 2, 1, 1]
    first = layers(kinds, bias)
    found = []
    ways: list[Callable[..., Tensor]] = [descent.descend, descent._descend]
    for function in ways:
        second: list[list[Any]] = [[None if part is None else part.clone() for part in parts] for parts in first]
        room = torch.empty(MEMBERS * PLACES, 7)
        losses = function(kinds, *second, table, labels, index, share, counts, [0.1] * STEPS, room)
        found.append([losses, *(part for parts in second for part in parts if part is not None)])
    assert all(map(torch.equal, *found))
    assert not torch.equal(found[0][1], first[0][0])


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_script_and_python_find_the_same_gradient(kinds: list[str]) -> None:
    torch.manual_seed(0)
    (weights, biases), (_, labels, share) = layers(kinds, True), batches()
    found = []
    ways: list[Callable[..., Tensor]] = [descent.gradient, descent._gradient]
    x = torch.randn(MEMBERS, PLACES, 7)
    for function in ways:
        into = (
            [torch.empty_like(part) for part in weights],
            [torch.empty_like(part) for part in biases if part is not None],
        )
        loss = function(kinds, weights, biases, x, labels[0], share[0], *into)
        found.append([loss, *into[0], *into[1]])
    assert all(map(torch.equal, *found))


def test_without_script_the_functions_themselves_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: Any) -> Any:
        raise RuntimeError("not here")

    descent.compiled.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(torch.jit, "script", refuse)
            assert descent.compiled(descent._descend) is descent._descend
    finally:
        descent.compiled.cache_clear()


def test_nobody_is_bothered_with_what_is_deprecated() -> None:
    descent.compiled.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        descent.compiled(descent._descend)
