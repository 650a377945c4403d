"""What is measured after a round (with purpose `evaluate`), and how it becomes a row and a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from headwater.engines.base import Done
from headwater.federation import CLIENTS, SERVER, Federation, Located, nothing
from headwater.metrics import bootstrap_mean_interval, covered, mean_interval, ordinary_interval, weighted
from headwater.stages.evaluate import class_accuracy, common_test, evaluate, expected_accuracy, own_accuracy, score_on

PHASES = ("train", "distill", "evaluate")


@dataclass(frozen=True)
class Asked:
    """Handles to what was asked for; the answers are read once the round's work is done."""

    outcome: Located  # at the server: of the one model
    by_client: Located  # at the server: {client: accuracy on its mix of labels}
    own: Located  # at the server: {client: accuracy on its own test rows}
    personal: Located  # at the server: {client: scores of its personal model}


def ask(fed: Federation, state: Any, tests: Located, own_tests: bool) -> Asked:
    fed = fed.whole.unseat().with_purpose("evaluate")
    if state.model is None:
        scores = fed.run(score_on, at=CLIENTS, model=state.personal, rows=tests)
        own = fed.run(own_accuracy, at=CLIENTS, model=state.personal) if own_tests else nothing(CLIENTS)
        return Asked(nothing(SERVER), nothing(SERVER), fed.up(own, to=SERVER), fed.up(scores, to=SERVER))
    outcome = fed.run(evaluate, at=SERVER, model=state.model)
    by_class = fed.down(fed.run(class_accuracy, at=SERVER, outcome=outcome), to=CLIENTS)
    own = nothing(CLIENTS)
    if own_tests:
        own = fed.run(own_accuracy, at=CLIENTS, model=fed.down(fed.down(state.model)))
    expected = fed.run(expected_accuracy, at=CLIENTS, by_class=by_class)
    return Asked(outcome, fed.up(expected, to=SERVER), fed.up(own, to=SERVER), nothing(SERVER))


def tests_for(fed: Federation, state: Any) -> Located:
    """The common test set where personal models live; nothing where there is one model at the server."""
    if state.model is not None:
        return nothing(CLIENTS)
    fed = fed.with_purpose("evaluate")
    return fed.down(fed.run(common_test, at=SERVER), to=CLIENTS)


@dataclass(frozen=True)
class Answer:
    """The measurements of one round."""

    accuracy: float
    loss: float
    client_accuracy: dict[str, float]
    local_accuracy: dict[str, float]
    correct: torch.Tensor | None = None
    confusion: torch.Tensor | None = None
    by_member: dict[str, float] = field(default_factory=dict)  # accuracies of personal models on the common test set


def answer(fed: Federation, asked: Asked, own_tests: bool) -> Answer:
    """Read what `ask` asked for. Waits."""
    own = {c: a for c, a in (fed.read(asked.own) or {}).items() if a is not None}
    outcome = fed.read(asked.outcome)
    if outcome is None:
        scores = fed.read(asked.personal)
        mean = {key: sum(s[key] for s in scores.values()) / len(scores) for key in ("accuracy", "loss")}
        by_client = {c: s["own_mix"] for c, s in scores.items()}
        members = {c: s["accuracy"] for c, s in scores.items()}
        return Answer(mean["accuracy"], mean["loss"], by_client, own if own_tests else by_client, by_member=members)
    by_client = fed.read(asked.by_client)
    return Answer(outcome["accuracy"], outcome["loss"], by_client, own, outcome["correct"], outcome["confusion"])


def row_of(fed: Federation, found: Answer | None, done: Sequence[Done]) -> dict[str, Any]:
    """A row of rounds.jsonl; accuracy and loss are null in a round that was not evaluated."""
    spans = {p: [(d.start, d.end) for d in done if d.phase == p] for p in PHASES}
    row: dict[str, Any] = {
        "round": fed.round,
        "accuracy": found.accuracy if found else None,
        "loss": found.loss if found else None,
        "seconds": {phase: round(covered(spans[phase]), 4) for phase in PHASES},
        "bytes": fed.desk.ledger.of_round(fed.round),
    }
    if found:
        row["client_accuracy"] = found.client_accuracy
        row["sector_accuracy"] = {
            sector: weighted({c: found.client_accuracy[c] for c in team}, fed.tree.sizes)
            for sector, team in fed.whole.teams.items()
        }
        if found.local_accuracy:
            row["local_accuracy"] = sum(found.local_accuracy.values()) / len(found.local_accuracy)
    return row | _notes(fed, done)


def _notes(fed: Federation, done: Sequence[Done]) -> dict[str, Any]:
    """Numbers that tasks noted, in tree order: the training loss, and what distillation did at each place."""
    order = {node: i for i, node in enumerate((*fed.tree.sectors, "server", *fed.tree.clients))}
    noted = sorted((d for d in done if d.notes), key=lambda d: (order[d.node], d.name))
    losses = {d.node: d.notes["loss"] for d in noted if d.phase == "train" and "loss" in d.notes}
    row: dict[str, Any] = {}
    if losses and all(fed.tree.sizes[node] for node in losses):
        row["train_loss"] = weighted(losses, fed.tree.sizes)
    places: dict[str, dict[str, float]] = {}
    for done_there in noted:
        if done_there.phase == "distill":
            places.setdefault(done_there.node, {}).update(done_there.notes)
    if places:
        row["distill"] = places
        first = [notes for node, notes in places.items() if node != "server"] or list(places.values())
        for key in ("teacher_accuracy", "student_before", "student_after"):
            if all(key in notes for notes in first):
                row[key] = sum(notes[key] for notes in first) / len(first)
    return row


def summary_of(found: Answer, history: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    """The accuracy part of result.json. Both intervals have their own name; `accuracy_ci95` is the ordinary one."""
    evaluated = [row for row in history if row["accuracy"] is not None]
    best = max(evaluated, key=lambda row: row["accuracy"])
    result: dict[str, Any] = {
        "accuracy": found.accuracy,
        "accuracy_ci95": None,
        "best_accuracy": best["accuracy"],
        "best_round": best["round"],
        "loss": found.loss,
        "client_accuracy": found.client_accuracy,
    }
    if found.correct is not None and found.confusion is not None:
        ordinary = list(ordinary_interval(int(found.correct.sum()), len(found.correct)))
        bootstrap = list(bootstrap_mean_interval(found.correct.tolist(), seed))
        result["accuracy_ci95"] = ordinary
        result["intervals"] = {"ordinary_wilson": ordinary, "bootstrap_mean_as_in_fedhead": bootstrap}
        result["confusion"] = found.confusion.tolist()
    elif found.by_member:
        mean, half = mean_interval(list(found.by_member.values()))
        interval = [mean - half, mean + half] if half is not None else None
        result["accuracy_ci95"], result["intervals"] = interval, {"t_over_clients": interval}
    if found.local_accuracy:
        result["local_accuracy"] = sum(found.local_accuracy.values()) / len(found.local_accuracy)
    return result
