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
from headwater.training.guessing import guess_limit, guess_note
from headwater.training.loop import train


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


def taught(place: str, before: float, after: float, teachers: float) -> list[dict[str, Any]]:
    """Five rounds at a guess, with notes of the first distillation; those after it get nothing but guesses."""
    notes = {"student_before": before, "student_after": after, "teacher_accuracy": teachers}
    later = {"student_before": 0.1, "student_after": 0.1, "teacher_accuracy": 0.1}
    first, *others = rows(*[0.1] * 5)
    return [first | {"distill": {place: notes}}, *(row | {"distill": {place: later}} for row in others)]


@pytest.mark.parametrize(
    ("method", "settings", "history", "words"),
    [
        (
            "fedeed",
            {},
            taught("server", 0.5, 0.1, 0.6),
            "in round 1 distillation at the server lowered the student from 50.0 % to 10.0 % on the validation set: "
            "server.lr = 0.1 is probably too high; try --set server.lr=0.01",
        ),
        (
            "feddf",
            {"server__restore": "last"},
            taught("server", 0.5, 0.1, 0.1),
            "server.restore = 'last' keeps that student; try --set server.restore=best_or_init",
        ),
        (
            "fedhead",
            {"sector__lr": 1e-6},
            taught("s0", 0.1, 0.1, 0.6),
            "at sectors left the student at 10.0 %, while its teachers had 60.0 % together, on the validation set: "
            "sector.lr = 1e-06 is probably too low; try --set sector.lr=0.001",
        ),
        (
            "feddf",
            {"server__steps": 2},
            taught("server", 0.1, 0.1, 0.6),
            "server.steps = 2 is probably too few; try --set server.steps=10",
        ),
        (
            "feddf",
            {"server__lr": 0.1},
            [row | {"average_accuracy": 0.4} for row in rows(*[0.1] * 5)],
            "from 40.0 % to 10.0 % on the test set: server.lr = 0.1 is probably too high; try --set server.lr=0.01",
        ),
    ],
)
def test_distillation_is_named_where_it_is_at_fault(
    method: str, settings: dict[str, Any], history: list[dict[str, Any]], words: str
) -> None:
    note = guess_note(experiment(method, partition__sectors=1, **settings), history, final=True)
    assert words in note
    assert "local." not in note


@pytest.mark.parametrize(
    ("settings", "history"),
    [
        ({}, taught("server", 0.1, 0.1, 0.1)),  # what is distilled is a guess already
        ({}, taught("server", 0.5, 0.6, 0.6)),  # the student is none
        ({}, rows(*[0.1] * 5)),  # nothing is known of it
    ],
)
def test_local_training_is_named_where_distillation_is_not_at_fault(
    settings: dict[str, Any], history: list[dict[str, Any]]
) -> None:
    note = guess_note(experiment("feddf", local__epochs=10, **settings), history, final=True)
    assert "local.epochs = 10 is probably too many" in note
    assert "distillation" not in note


def test_rows_of_a_leader_decide_nothing() -> None:
    """They are few and of few classes, so that no limit of a guess is known for them."""
    made = experiment("fedhead", partition__sectors=1, algorithm__val_source="leader", local__epochs=10)
    assert "local.epochs" in guess_note(made, taught("s0", 0.5, 0.1, 0.6), final=True)


def test_later_rounds_do_not_change_the_sentence() -> None:
    made, early = experiment("feddf"), rows(*[0.1] * 5)
    assert guess_note(made, [*early, *taught("server", 0.5, 0.1, 0.6)], final=True) == guess_note(
        made, early, final=False
    )


def test_it_is_told_once_and_kept(tmp_path: Any) -> None:
    said: list[str] = []
    made = experiment(rounds=6, local__epochs=1, local__lr=1e-9)
    run = train(made, out=tmp_path / "a", watch=lambda event: said.append(event.text) if event.text else None)
    assert len(said) == 1
    assert "still a guess after 5 evaluated rounds" in said[0]
    assert run.result["notes"] == said
    assert "still a guess after 5 evaluated rounds" in page.render([read(tmp_path / "a")])
