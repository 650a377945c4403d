"""A run whose accuracy stays at chance says so, with what to try."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headwater.config import Config
from headwater.report import page
from headwater.report.runs import read
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train
from headwater.training.remarks import guess_limit, guess_note


def experiment(method: str = "fedavg", **settings: Any) -> Experiment:
    return prepare(Config.load(method, [], partition__clients=3, **settings))


def rows(*values: float | None) -> list[dict[str, Any]]:
    return [{"round": at, "accuracy": value} for at, value in enumerate(values, start=1)]


def test_the_limit_is_a_binomial_interval_around_the_most_frequent_class() -> None:
    labels = torch.tensor([0] * 60 + [1] * 40)
    assert guess_limit(labels, 2) == pytest.approx(0.6 + 1.96 * math.sqrt(0.6 * 0.4 / 100), abs=1e-4)
    even = torch.arange(100) % 10
    assert guess_limit(even, 10) == pytest.approx(0.1 + 1.96 * 0.03, abs=1e-4)
    assert guess_limit(even, 5) == pytest.approx(0.2 + 1.96 * 0.04, abs=1e-4), "one in five is more than a tenth"


def test_it_takes_five_rounds_or_the_end_of_three() -> None:
    made = experiment()
    assert guess_note(made, rows(0.1, None, 0.1, 0.1, 0.1), final=False) == ""
    assert guess_note(made, rows(0.1, None, 0.1, 0.1, 0.1, 0.1), final=False) != ""
    assert guess_note(made, rows(0.1, 0.1), final=True) == ""
    assert "after 3 evaluated rounds" in guess_note(made, rows(0.1, 0.1, 0.1), final=True)
    assert guess_note(made, rows(0.1, 0.1, 0.5, 0.1, 0.1), final=False) == ""
    assert guess_note(experiment("local"), rows(*[0.1] * 5), final=True) == "", "a client knows its own classes"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local__optimizer": "sgd", "local__lr": 0.5}, "local.lr = 0.5 is probably too high .* --set local.lr=0.05"),
        ({"local__lr": 1e-6}, "local.lr = 1e-06 is probably too low .* --set local.lr=0.001"),
        ({"local__epochs": 10}, "local.epochs = 10 is probably too many .* --set local.epochs=2"),
        ({"local__epochs": 1}, "headwater tune fedavg"),
    ],
)
def test_the_likely_setting_is_named(settings: dict[str, Any], words: str) -> None:
    import re

    assert re.search(words, guess_note(experiment(**settings), rows(*[0.1] * 5), final=True))


def test_it_is_told_once_and_kept(tmp_path: Any) -> None:
    said: list[str] = []
    made = experiment(rounds=6, local__epochs=1, local__lr=1e-9)
    run = train(made, out=tmp_path / "a", watch=lambda event: said.append(event.text) if event.text else None)
    assert len(said) == 1
    assert "still a guess after 5 evaluated rounds" in said[0]
    assert run.result["notes"] == said
    assert "still a guess after 5 evaluated rounds" in page.render([read(tmp_path / "a")])
