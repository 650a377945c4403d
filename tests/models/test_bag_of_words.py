"""The mean of word embeddings for texts, by itself and in a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import headwater as hw
from headwater.models.base import ModelSpec


def built(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return ModelSpec("bag_of_words", (4,), 3, {"words": 9, "embedding": 2} | options).build()


def test_count() -> None:
    embedding, norm, hidden, classifier = 10_000 * 64, 2 * 64, 64 * 64 + 64, 64 * 4 + 4
    assert ModelSpec("bag_of_words", (128,), 4).count() == embedding + norm + hidden + classifier
    assert ModelSpec("bag_of_words", (128,), 4, {"hidden": []}).count() == embedding + norm + classifier


def test_features_by_hand() -> None:
    """The mean of two words is (1, 4); a layer norm of two numbers makes (−1, 1) of it, but for its ε."""
    net = built(hidden=[])
    with torch.no_grad():
        net.features[0].embedding.weight[5] = torch.tensor([0.0, 2.0])
        net.features[0].embedding.weight[7] = torch.tensor([2.0, 6.0])
    found = net.features(torch.tensor([[0, 0, 5, 7]]))
    assert torch.allclose(found, torch.tensor([[-1.0, 1.0]]), atol=1e-4)


def test_neither_order_nor_padding_counts() -> None:
    net = built()
    same = net(torch.tensor([[0, 0, 5, 7], [7, 5, 0, 0], [5, 0, 7, 0]]))
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    assert not torch.equal(same[0], net(torch.tensor([[0, 0, 5, 5]]))[0])


def test_a_text_of_padding_alone_has_finite_logits_and_gradients() -> None:
    net = built()
    net(torch.zeros(2, 4, dtype=torch.int64)).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in net.parameters())
    assert not net.features[0].embedding.weight.grad[0].any()


@pytest.mark.parametrize("method", ["fedavg", "fedhead", "fedalign"])
def test_learns_which_word_tells_the_class(method: str) -> None:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randint(8, 20, (120, 6), generator=draw), torch.randint(2, (120,), generator=draw)
    x[y == 1, 4] = 7
    run = hw.run(
        method,
        data=hw.Data(x[:80], y[:80], x[80:], y[80:], tokens=True),
        partition={"clients": 4, "sectors": 2, "alpha": 10.0},
        rounds=3,
        local={"lr": 0.03},
        model__embedding=8,
    )
    assert run.result["model"] == "bag_of_words", "what texts get"
    assert run.spec.options["words"] == 20, "an embedding for each token there is"
    assert run.accuracy > 0.9


def test_fedma_says_which_part_it_cannot_match() -> None:
    """Its own default network takes values, so texts get theirs, which has an embedding."""
    x, y = torch.arange(1, 41).view(20, 2), torch.arange(20) % 2
    with pytest.raises(hw.ConfigError, match=r"fedma matches neurons in chains .* this model has a MeanEmbedding"):
        hw.run("fedma", data=hw.Data(x, y, x, y, tokens=True), clients=2, sectors=1, rounds=1)
