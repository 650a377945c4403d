"""Evaluation after a round, charged with purpose `evaluate`, and how it becomes a row and a result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch

from headwater.algorithms.base import outputs
from headwater.algorithms.cohorts import bundled
from headwater.core.federation import CLIENTS, SERVER, Federation, Located, nothing
from headwater.core.rng import stream
from headwater.core.statistics import bootstrap_mean_interval, covered, mean_interval, ordinary_interval, weighted
from headwater.core.tree import Tree
from headwater.engines.base import Done
from headwater.engines.nan_check import BAD
from headwater.tasks.distill import TEACHER
from headwater.tasks.evaluate import (
    SUCCESS,
    class_accuracy,
    common_test,
    evaluate,
    evaluate_team,
    expected_accuracy,
    own_accuracy,
    score_on,
    validate,
    validate_team,
)
from headwater.tasks.secure import LEFT_OUT, TOO_FEW

PHASES = ("train", "distill", "evaluate")
MOST_EXPECTED = 100  # clients for which the expected accuracy under their own label distribution is computed
MOST_OWN = 1000  # clients that test a model on their own test rows


@dataclass(frozen=True)
class Measurements:
    """Handles to the measurements of a round, all at the server. They are read once the round is done."""

    outcome: Located  # of the global model, or of the team where there is neither a global nor personal models
    by_client: Located  # {client: expected accuracy under its label distribution}
    own: Located  # {client: accuracy on its own test rows}
    personal: Located  # {client: scores of its personal model on the common test set}
    team: Located  # of the ensemble at the server
    also: dict[str, Located] = field(default_factory=dict)  # accuracies of further models
    validation: Located = field(default_factory=lambda: nothing(SERVER))  # of what `outcome` is of, if there are rows


def submit_evaluation(
    fed: Federation, state: Any, tests: Located, own_tests: bool, by_client: bool = True
) -> Measurements:
    """Submit the evaluation of a state. Does not wait.

    Global models are evaluated for all clients while they are few, and for a fixed random sample of them otherwise, so
    that the cost does not grow with the number of registered clients.

    Args:
        fed: the view of the round.
        state: the method's state.
        tests: the common test set at clients, from `tests_for`.
        own_tests: True if clients keep test rows of their own.
        by_client: also compute the expected accuracy of each client.
    """
    fed = fed.whole.unseat().with_purpose("evaluate")
    shown = outputs(state)
    model, personal, team = shown.model, shown.personal, shown.team
    own = scores = nothing(CLIENTS)
    if personal is not None:
        there = fed.among(personal.nodes)  # a client that never took part has no personal model
        own = there.run(own_accuracy, at=CLIENTS, model=personal) if own_tests else own
        if _common(state, own_tests):
            scores = there.run(score_on, at=CLIENTS, model=personal, rows=tests)
    elif own_tests and model is not None:
        some = judged(fed, MOST_OWN)
        own = some.run(own_accuracy, at=CLIENTS, model=some.down(some.down(model)))
    teamed = outcome = means = validation = nothing(SERVER)
    validates = fed.session.precompute.rows.get("validation", 0) > 0
    if team is not None:
        members = team.members if isinstance(team.members, Located) else bundled(team.members)
        teamed = fed.run(evaluate_team, at=SERVER, members=members, mix=team.mix, weights=team.weights)
    if model is not None:
        outcome = fed.run(evaluate, at=SERVER, model=model)
        validation = fed.run(validate, at=SERVER, model=model) if validates else validation
    elif personal is None:
        outcome = teamed
        if team is not None and validates:
            validation = fed.run(validate_team, at=SERVER, members=members, mix=team.mix, weights=team.weights)
    if outcome.nodes and by_client:
        some = judged(fed, MOST_EXPECTED)
        by_class = some.down(some.run(class_accuracy, at=SERVER, outcome=outcome), to=CLIENTS)
        means = some.up(some.run(expected_accuracy, at=CLIENTS, by_class=by_class), to=SERVER)
    also = {name: fed.run(evaluate, at=SERVER, model=other)["accuracy"] for name, other in shown.also.items()}
    return Measurements(outcome, means, fed.up(own, to=SERVER), fed.up(scores, to=SERVER), teamed, also, validation)


def judged(fed: Federation, most: int) -> Federation:
    """The view of all clients with data; of a uniform sample of `most`, the same in every round, if there are more."""
    holders = fed.tree.holders
    if len(holders) <= most:
        return fed.whole
    return replace(fed, clients=_drawn(fed.tree, fed.session.seed, most))


@lru_cache(maxsize=1)
def _drawn(tree: Tree, seed: int, most: int) -> tuple[str, ...]:
    drawn = stream(seed, "judged").choice(len(tree.holders), size=min(len(tree.holders), MOST_OWN), replace=False)
    # The smaller sample is part of the larger one.
    return tree.in_order(tree.holders[at] for at in drawn[:most].tolist())


def _common(state: Any, own_tests: bool) -> bool:
    """True if personal models are tested on the common test set: without a global model or without own test rows."""
    shown = outputs(state)
    return shown.personal is not None and (shown.model is None or not own_tests)


def tests_for(fed: Federation, state: Any, own_tests: bool) -> Located:
    """The common test set at the clients, if personal models are tested on it."""
    if not _common(state, own_tests):
        return nothing(CLIENTS)
    fed = fed.with_purpose("evaluate")
    return fed.down(fed.run(common_test, at=SERVER), to=CLIENTS)


@dataclass(frozen=True)
class Scores:
    """The measurements of one round, read from `Measurements`."""

    accuracy: float
    loss: float
    client_accuracy: dict[str, float]
    local_accuracy: dict[str, float]
    correct: torch.Tensor | None = None
    confusion: torch.Tensor | None = None
    by_member: dict[str, float] = field(default_factory=dict)  # accuracies of personal models on the common test set
    others: dict[str, float] = field(default_factory=dict)  # accuracies of the ensemble and of further models, by key
    validation: dict[str, float] | None = None  # accuracy and loss on the validation set

    @property
    def further(self) -> dict[str, Any]:
        """Entries that a row and a result share: accuracies of personal models, the ensemble and further models."""
        found: dict[str, Any] = {}
        if local := list(self.local_accuracy.values()):
            found["local_accuracy"] = mean = sum(local) / len(local)
            std = math.sqrt(sum((value - mean) ** 2 for value in local) / len(local))
            found["local_accuracy_spread"] = {"std": std, "min": min(local), "max": max(local)}
        if self.validation is not None:
            found |= {f"validation_{key}": value for key, value in self.validation.items()}
        return found | self.others


def read_evaluation(fed: Federation, asked: Measurements, own_tests: bool) -> Scores:
    """Read what `submit_evaluation` submitted. Waits."""
    own = {c: a for c, a in (fed.read(asked.own) or {}).items() if a is not None}
    scores = fed.read(asked.personal) or {}
    mixed = {c: s["own_mix"] for c, s in scores.items()}
    local = own if own_tests else mixed
    others = {f"{name}_accuracy": float(fed.read(found)) for name, found in asked.also.items()}
    if (team := fed.read(asked.team)) is not None:
        others = {"ensemble_accuracy": team["accuracy"]} | others
    outcome = fed.read(asked.outcome)
    if outcome is not None and SUCCESS in outcome:
        others[SUCCESS] = outcome[SUCCESS]
    if outcome is None:
        mean = {key: sum(s[key] for s in scores.values()) / max(1, len(scores)) for key in ("accuracy", "loss")}
        mean |= {} if scores else {"loss": math.nan}  # no client has a model: loss 0 would be wrong
        members = {c: s["accuracy"] for c, s in scores.items()}
        return Scores(mean["accuracy"], mean["loss"], mixed, local, by_member=members, others=others)
    judged = (outcome["correct"], outcome["confusion"])
    rest = {"others": others, "validation": fed.read(asked.validation)}
    return Scores(outcome["accuracy"], outcome["loss"], fed.read(asked.by_client) or {}, local, *judged, **rest)


def row_of(fed: Federation, found: Scores | None, done: Sequence[Done]) -> dict[str, Any]:
    """Row of rounds.jsonl. Accuracy and loss are null in a round that was not evaluated."""
    spans = {p: [(d.start, d.end) for d in done if d.phase == p] for p in PHASES}
    row: dict[str, Any] = {
        "round": fed.round,
        "accuracy": found.accuracy if found else None,
        "loss": found.loss if found else None,
        "seconds": {phase: round(covered(spans[phase]), 4) for phase in PHASES},
        "bytes": fed.session.ledger.of_round(fed.round),
        "waits": fed.session.ledger.waits.get(fed.round, {}),
    }
    if fed.led:
        row["leaders"] = {sector: fed.led[sector] for sector in fed.tree.sectors if sector in fed.led}
    if found:
        row["client_accuracy"] = found.client_accuracy
        row["sector_accuracy"] = {
            sector: weighted({client: found.client_accuracy[client] for client in sizes}, sizes)
            for sector, sizes in _sizes_by_sector(fed.tree, tuple(found.client_accuracy)).items()
        }
        row |= found.further
    return row | _notes(fed, done)


@lru_cache(maxsize=1)  # most often the same clients in every round
def _sizes_by_sector(tree: Tree, clients: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Samples of these clients by sector, in tree order."""
    found: dict[str, dict[str, int]] = {}
    for client in tree.in_order(clients):
        found.setdefault(tree.sector_of[client], {})[client] = tree.sizes[client]
    return {sector: found[sector] for sector in tree.sectors if sector in found}


def _left_out(fed: Federation, noted: Sequence[tuple[Done, str, Mapping[str, float]]]) -> dict[str, list[str]]:
    """Members that secure sums went on without, by place of the sum. Clients add nothing up, so they have no say."""
    found: dict[str, list[str]] = {}
    for _, node, notes in noted:
        names = [key.removeprefix(LEFT_OUT) for key in notes if key.startswith(LEFT_OUT)]
        if node not in fed.tree.sector_of:
            found.setdefault(node, []).extend(name for name in names if name in fed.tree.sizes)
    return {node: names for node, names in found.items() if names}


def _notes(fed: Federation, done: Sequence[Done]) -> dict[str, Any]:
    """Numbers that tasks noted, in tree order: the training loss, and the distillation figures of each node."""
    by_number = sorted(done, key=lambda d: int(d.name.split(".")[1]))
    reports = [(d, node, notes) for d in by_number for node, notes in d.notes.items() if notes]
    nodes = (*fed.tree.sectors, "server", *fed.tree.in_order(node for _, node, _ in reports))
    order = {node: at for at, node in enumerate(nodes)}
    noted = sorted(reports, key=lambda each: order[each[1]])
    bad = [{"node": node, "task": d.title} for d, node, notes in noted if BAD in notes]
    noted = [each for each in noted if BAD not in each[2]]
    losses = {node: notes["loss"] for d, node, notes in noted if d.phase == "train" and "loss" in notes}
    row: dict[str, Any] = {"bad_updates": bad} if bad else {}
    if short := {node: int(notes[TOO_FEW]) for _, node, notes in noted if TOO_FEW in notes}:
        row[TOO_FEW] = short
    if unread := _left_out(fed, noted):
        row[LEFT_OUT.strip()] = unread
    sizes = {node: fed.tree.sizes[node] for node in losses}
    if losses and all(sizes.values()):
        row["train_loss"] = weighted(losses, sizes)
    if released := {node: int(notes["released"]) for _, node, notes in noted if "released" in notes}:
        row["released"] = released
    places: dict[str, dict[str, float]] = {}
    for d, node, notes in noted:
        if d.phase == "distill":
            places.setdefault(node, {}).update(notes)
    if places:
        row["distill"] = {node: _by_teacher(notes) for node, notes in places.items()}
        first = [notes for node, notes in places.items() if node != "server"] or list(places.values())
        for key in ("teacher_accuracy", "student_before", "student_after"):
            if all(key in notes for notes in first):
                row[key] = sum(notes[key] for notes in first) / len(first)
    return row


def _by_teacher(notes: Mapping[str, float]) -> dict[str, Any]:
    """The notes of one distillation, with the accuracies of single teachers under one key."""
    alone = {key.removeprefix(TEACHER): value for key, value in notes.items() if key.startswith(TEACHER)}
    others = {key: value for key, value in notes.items() if not key.startswith(TEACHER)}
    return others | ({"by_teacher": alone} if alone else {})


def summary_of(found: Scores, history: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    """The accuracy part of result.json. Each interval has its own name; `accuracy_ci95` is the Wilson interval."""
    best, by = best_row(history)
    result: dict[str, Any] = {
        "accuracy": found.accuracy,
        "accuracy_ci95": None,
        "best_accuracy": best["accuracy"],
        "best_round": best["round"],
        "best_by": by,
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
        interval = [max(0.0, mean - half), min(1.0, mean + half)] if half is not None else None
        result["accuracy_ci95"], result["intervals"] = interval, {"t_over_clients": interval}
    return result | found.further


def best_row(history: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The row of the best round, and what chose it: the validation set, never the test set.

    Rounds with equal validation accuracy are told apart by the validation loss; of equal ones the first is taken. Where
    nothing was validated, it is the last evaluated round.
    """
    evaluated = [row for row in history if row["accuracy"] is not None]
    judged = [row for row in evaluated if row.get("validation_accuracy") is not None]
    if not judged:
        return evaluated[-1], "last round"
    return max(judged, key=lambda row: (row["validation_accuracy"], -row["validation_loss"])), "validation accuracy"
