"""Perceptrons."""

from __future__ import annotations

import torch

from headwater.models.base import ModelSpec


def test_mlp_has_the_given_widths() -> None:
    """5·7+7, 7·4+4 and 4·3+3."""
    assert ModelSpec("mlp", (5,), 3, {"hidden": [7, 4]}).count() == 42 + 32 + 15


def test_mlp_without_hidden_layers_is_the_linear_model() -> None:
    assert ModelSpec("mlp", (5,), 3, {"hidden": []}).count() == ModelSpec("linear", (5,), 3).count() == 18


def test_linear_is_linear() -> None:
    torch.manual_seed(0)
    model = ModelSpec("linear", (2, 3), 4).build()
    x, y = torch.rand(1, 2, 3), torch.rand(1, 2, 3)
    torch.testing.assert_close(model(x) + model(y), model(x + y) + model(torch.zeros(1, 2, 3)))


def test_four_layers_of_200_as_for_traffic() -> None:
    """81 features and 75 classes."""
    count = 81 * 200 + 200 + 3 * (200 * 200 + 200) + 200 * 75 + 75
    assert ModelSpec("mlp", (81,), 75, {"hidden": [200] * 4}).count() == count
