"""The two attacks by themselves, on models whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwater.audit.inversion import invert, layer_guesses
from headwater.audit.membership_inference import MembershipScores, class_weights, membership
from headwater.core.params import Params
from headwater.models.base import ModelSpec
from headwater.tasks.flat_module import FlatModule

ROWS, FEATURES, CLASSES = 60, 20, 4


def network(width: int = 128) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


def step(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[Params, Params]:
    """A model before and after one step of gradient descent."""
    start = Params.of(module)
    F.cross_entropy(module(x), y).backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.1 * parameter.grad
    return start, Params.of(module)


def scores(module: nn.Module, members: torch.Tensor, others: torch.Tensor, labels: torch.Tensor) -> MembershipScores:
    with torch.no_grad():
        loss = [F.cross_entropy(module(x), labels, reduction="none").double().numpy() for x in (members, others)]
    return MembershipScores(-loss[0], -loss[1], class_weights(labels.numpy(), labels.numpy()))


def test_the_update_of_one_row_shows_the_row_exactly() -> None:
    x = torch.randn(1, FEATURES, generator=torch.Generator().manual_seed(1))
    start, end = step(network().double(), x.double(), torch.tensor([2]))
    guesses = layer_guesses(start, end, FEATURES)
    assert guesses is not None
    assert len(guesses) > 1
    assert torch.allclose(guesses, x.double().expand_as(guesses), atol=1e-9)


def test_a_mean_of_many_rows_shows_none_of_them_and_noise_shows_nothing() -> None:
    draw = torch.Generator().manual_seed(2)
    rows, others, public = (torch.randn(40, FEATURES, generator=draw) for _ in range(3))
    module = network()
    start, end = step(module, rows, torch.arange(40) % CLASSES)
    net = FlatModule(ModelSpec("own", (FEATURES,), CLASSES, builder=network), "model")
    mixed = invert(net, start, end, (rows, others, public), CLASSES, False, 0).analytic
    assert mixed is not None
    assert mixed.similarity < 0.95
    noisy = Params(end.vector + 10 * torch.randn(len(end.vector), generator=draw), end.counters, end.layout)
    lost = invert(net, start, noisy, (rows, others, public), CLASSES, False, 0).analytic
    assert lost is not None
    assert abs(lost.similarity - lost.control) < 0.2


@pytest.mark.thorough
def test_a_search_finds_rows_in_a_small_batch_and_none_in_noise() -> None:
    draw = torch.Generator().manual_seed(4)
    rows, others, public = (torch.randn(2, FEATURES, generator=draw) for _ in range(3))
    start, end = step(network(), rows, torch.tensor([0, 2]))
    net = FlatModule(ModelSpec("own", (FEATURES,), CLASSES, builder=network), "model")
    found = invert(net, start, end, (rows, others, public), CLASSES, True, 0).searched
    assert found is not None
    assert found.similarity > 0.95
    assert found.control < 0.7
    noisy = Params(end.vector + 10 * torch.randn(len(end.vector), generator=draw), end.counters, end.layout)
    lost = invert(net, start, noisy, (rows, others, public), CLASSES, True, 0).searched
    assert lost is not None
    assert lost.similarity < 0.7


def test_a_model_that_knows_its_rows_by_heart_tells_them_and_an_untrained_one_does_not() -> None:
    draw = torch.Generator().manual_seed(3)
    x, others = torch.randn(ROWS, FEATURES, generator=draw), torch.randn(ROWS, FEATURES, generator=draw)
    y = torch.randint(CLASSES, (ROWS,), generator=draw)  # nothing to learn but by heart
    module = network()
    before = membership([scores(module, x, others, y)])
    assert before is not None
    assert before.auc.low is not None
    assert before.auc.high is not None
    assert before.auc.low < 0.5 < before.auc.high
    for _ in range(150):
        module.zero_grad()
        F.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.5 * parameter.grad
    after = membership([scores(module, x, others, y)])
    assert after is not None
    assert after.auc.low is not None
    assert after.auc.value > 0.9
    assert after.auc.low > 0.85
    assert after.advantage.value > 0.6


def test_to_know_the_classes_of_a_client_is_no_membership() -> None:
    """A client with two of three classes, whose model has a small loss on these and does not know its rows."""
    mine, theirs = np.array([0, 1] * 30), np.array([0, 1, 2] * 30)
    by_class = np.array([-0.1, -0.2, -9.0])
    found = membership([MembershipScores(by_class[mine], by_class[theirs], class_weights(mine, theirs))])
    assert found is not None
    assert abs(found.auc.value - 0.5) < 1e-9


def test_a_client_of_few_rows_gives_no_number() -> None:
    few = np.zeros(3)
    assert membership([MembershipScores(few, np.zeros(50), np.ones(50))]) is None
