from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import toys
from headwater.data.split import Split
from headwater.tasks.evaluate import class_accuracy, evaluate, expected_accuracy, own_accuracy, score_on
from headwater.tasks.task import RunContext

# Class 0 is said for positive x. Of the test rows 2 of 3 of class 0 and 1 of 1 of class 1 are right.
TEST = toys.points((1, 0), (2, 0), (-1, 0), (-2, 1))
MODEL = toys.params(toys.Slopes((1.0, -1.0)))


@pytest.fixture
def around() -> RunContext:
    place = toys.context([toys.points((1, 0), (1, 1), (1, 1), (1, 1)), toys.points((1, 1))], toys.Slopes)
    split: Split = replace(place.split, test=TEST)
    return replace(place, split=split, test_rows={"c0": place.rows["c0"][:2]})


def test_evaluate(around: RunContext) -> None:
    found = evaluate(toys.ctx(around, "server"), MODEL)
    assert found["accuracy"] == 0.75
    assert found["correct"].tolist() == [True, True, False, True]
    assert found["confusion"].tolist() == [[2, 1], [0, 1]]
    expected = torch.nn.functional.cross_entropy(torch.tensor([[1.0, -1], [2, -2], [-1, 1], [-2, 2]]), TEST.y)
    assert found["loss"] == pytest.approx(float(expected), abs=1e-6)


def test_by_class_and_by_a_clients_mix(around: RunContext) -> None:
    """c0 holds one of class 0 and three of class 1: ¼·⅔ + ¾·1."""
    by_class = class_accuracy(toys.ctx(around, "server"), evaluate(toys.ctx(around, "server"), MODEL))
    assert by_class.tolist() == pytest.approx([2 / 3, 1.0])
    assert expected_accuracy(toys.ctx(around, "c0"), by_class) == pytest.approx(1 / 4 * 2 / 3 + 3 / 4)
    assert expected_accuracy(toys.ctx(around, "c1"), by_class) == pytest.approx(1.0)


def test_a_class_without_test_rows_counts_as_missed(around: RunContext) -> None:
    outcome = {"confusion": torch.tensor([[2, 1], [0, 0]])}
    assert class_accuracy(toys.ctx(around, "server"), outcome).tolist() == pytest.approx([2 / 3, 0.0])


def test_own_rows(around: RunContext) -> None:
    assert own_accuracy(toys.ctx(around, "c0"), MODEL) == 0.5
    assert own_accuracy(toys.ctx(around, "c1"), MODEL) is None


def test_personal_score(around: RunContext) -> None:
    found = score_on(toys.ctx(around, "c0"), MODEL, TEST)
    assert found["accuracy"] == 0.75
    assert found["own_mix"] == pytest.approx(1 / 4 * 2 / 3 + 3 / 4)
