"""The note on a run whose accuracy stays at chance level, that is, not above what naming one class gives.

It depends on the rows alone, so a resumed run has the same note as one that was not interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from headwater.config.catalog import stage_specs
from headwater.core.statistics import Z95
from headwater.report.numbers import number
from headwater.report.teaching import at_place
from headwater.specs import LEARNING_RATE, Descent, DistillSpec, LocalSpec
from headwater.training.experiment import Experiment

ENOUGH = 5  # evaluated rounds after which the note is made
LEAST = 3  # evaluated rounds of a shorter run, at its end
HIGH = {"sgd": 0.03, "adam": 5e-3, "adamw": 5e-3}  # from here on a learning rate is the first suspect
PLACES = {"sector": "at sectors", "server": "at the server"}  # sections of distillation, in the order of a round
LOW = 0.1  # times the usual learning rate: from here down it is too low


def guess_limit(labels: torch.Tensor, classes: int) -> float:
    """The highest accuracy on these labels that may be a guess.

    It is the upper end of the 95 % binomial interval around the share of the most frequent class, or around one in
    `classes` if that is more.

    Args:
        labels: true labels of the test set.
        classes: number of classes.
    """
    rows = len(labels)
    if not rows:
        return 1.0
    share = max(1 / classes, float(torch.bincount(labels, minlength=classes).max()) / rows)
    return min(1.0, share + Z95 * math.sqrt(share * (1 - share) / rows))


def guess_note(experiment: Experiment, history: Sequence[dict[str, Any]], *, final: bool) -> str:
    """A sentence if a run has not left a guess in its first evaluated rounds; else an empty text.

    Args:
        experiment: the run.
        history: its rows so far.
        final: whether the run has ended, so that fewer rounds are enough. Before, only the fifth evaluated round gives
            a sentence, so that it is said once.
    """
    if experiment.method.INFO.personal:  # a client's own model knows its client's classes only
        return ""
    evaluated = [at for at, row in enumerate(history) if row["accuracy"] is not None]
    if (len(evaluated) < LEAST) if final else (len(evaluated) != ENOUGH):
        return ""
    history = history[: evaluated[:ENOUGH][-1] + 1]  # at the end of the run the same as in the fifth round
    seen, split = [row["accuracy"] for row in history if row["accuracy"] is not None], experiment.split
    if max(seen) > guess_limit(split.test.y, split.classes):
        return ""
    what = f"accuracy is still a guess after {len(seen)} evaluated rounds ({_percent(max(seen))} at most)"
    advice = _distilling(experiment, history) or _training(experiment)
    return f"{what}; {advice}" if advice else what


def _distilling(experiment: Experiment, history: Sequence[dict[str, Any]]) -> str:
    """What to try where distillation keeps the model at a guess; empty where the models that it gets are one already.

    The first round decides: later ones train what it left, which may be beyond repair. The training loss does not tell:
    clients with few classes have a low one, whatever becomes of their models.
    """
    split, method = experiment.split, experiment.method
    specs = {stage: spec for stage, spec in stage_specs(method).items() if isinstance(spec, DistillSpec)}
    row = next((row for row in history if "distill" in row), {})
    limit = guess_limit(split.validation.y, split.classes)
    for stage in (each for each in PLACES if each in specs and method.validates_on_server_data(each)):
        keys = ("student_before", "student_after", "teacher_accuracy")
        before, after, teachers = (at_place(key, server=stage == "server")(row) for key in keys)
        if after is None or after > limit:
            continue
        if before is not None and before > limit:
            return _spoils(row, stage, specs[stage], before, after, "validation")
        if teachers is not None and teachers > limit:
            return _learns_nothing(row, stage, specs[stage], teachers, after)
    row = next((row for row in history if number(row.get("average_accuracy")) is not None), {})
    before, after, limit = row.get("average_accuracy"), row.get("accuracy"), guess_limit(split.test.y, split.classes)
    if "server" in specs and before is not None and after is not None and before > limit >= after:
        return _spoils(row, "server", specs["server"], before, after, "test")
    return ""


def _spoils(row: dict[str, Any], stage: str, spec: DistillSpec, before: float, after: float, rows: str) -> str:
    """The setting of a stage that takes students from what they know to a guess."""
    fall = f"from {_percent(before)} to {_percent(after)} on the {rows} set"
    found = f"in round {row['round']} distillation {PLACES[stage]} lowered the student {fall}"
    if spec.lr < HIGH[spec.optimizer] and spec.restore == "last":
        return f"{found}: {stage}.restore = 'last' keeps that student; try --set {stage}.restore=best_or_init"
    return f"{found}: {stage}.lr = {spec.lr:g} is probably too high; try --set {stage}.lr={spec.lr / 10:g}"


def _learns_nothing(row: dict[str, Any], stage: str, spec: DistillSpec, teachers: float, after: float) -> str:
    """The setting of a stage whose students stay at a guess beside teachers that know more."""
    ends = f"at {_percent(after)}, while its teachers had {_percent(teachers)} together, on the validation set"
    found = f"in round {row['round']} distillation {PLACES[stage]} left the student {ends}"
    if rate := _rate(stage, spec):
        return f"{found}: {rate}"
    length = "epochs" if spec.steps is None else "steps"
    now = getattr(spec, length)
    return f"{found}: {stage}.{length} = {now} is probably too few; try --set {stage}.{length}={5 * max(1, now)}"


def _training(experiment: Experiment) -> str:
    """The setting of local training that is probably wrong, and one to try."""
    spec = stage_specs(experiment.method).get("local")
    if not isinstance(spec, LocalSpec):
        return ""
    where = f" for {experiment.config.method} with {experiment.model.name} on these clients"
    if rate := _rate("local", spec, where):
        return rate
    if (spec.epochs or 0) > 1:
        few = max(1, (spec.epochs or 0) // 5)
        return f"local.epochs = {spec.epochs} is probably too many{where}; try --set local.epochs={few}"
    return f"local.lr = {spec.lr:g} may not suit{where}; try headwater tune {experiment.config.method}"


def _rate(stage: str, spec: Descent, where: str = "") -> str:
    """A sentence on a learning rate that is far from the usual ones; else an empty text."""
    usual = LEARNING_RATE[spec.optimizer]
    if spec.lr >= HIGH[spec.optimizer]:
        return f"{stage}.lr = {spec.lr:g} is probably too high{where}; try --set {stage}.lr={spec.lr / 10:g}"
    if spec.lr <= LOW * usual:
        return f"{stage}.lr = {spec.lr:g} is probably too low{where}; try --set {stage}.lr={usual:g}"
    return ""


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
