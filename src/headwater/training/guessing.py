"""Tells a run that has not left a guess: its accuracy is not above what naming one class gives.

It looks at the rows alone, so a resumed run says the same as one that was not interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from headwater.config.catalog import stage_specs
from headwater.core.statistics import Z95
from headwater.specs import LEARNING_RATE, LocalSpec
from headwater.training.experiment import Experiment

ENOUGH = 5  # evaluated rounds after which a run is told
LEAST = 3  # evaluated rounds of a shorter run, at its end
HIGH = {"sgd": 0.03, "adam": 5e-3, "adamw": 5e-3}  # from here on a learning rate is the first suspect
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
    seen = [row["accuracy"] for row in history if row["accuracy"] is not None]
    if (len(seen) < LEAST) if final else (len(seen) != ENOUGH):
        return ""
    seen, split = seen[:ENOUGH], experiment.split
    if max(seen) > guess_limit(split.test.y, split.classes):
        return ""
    what = f"accuracy is still a guess after {len(seen)} evaluated rounds ({100 * max(seen):.1f} % at most)"
    advice = _advice(experiment)
    return f"{what}; {advice}" if advice else what


def _advice(experiment: Experiment) -> str:
    """The setting that is probably wrong, and one to try."""
    spec = stage_specs(experiment.method).get("local")
    if not isinstance(spec, LocalSpec):
        return ""
    where = f"for {experiment.config.method} with {experiment.model.name} on these clients"
    usual = LEARNING_RATE[spec.optimizer]
    if spec.lr >= HIGH[spec.optimizer]:
        return f"local.lr = {spec.lr:g} is probably too high {where}; try --set local.lr={spec.lr / 10:g}"
    if spec.lr <= LOW * usual:
        return f"local.lr = {spec.lr:g} is probably too low {where}; try --set local.lr={usual:g}"
    if (spec.epochs or 0) > 1:
        few = max(1, (spec.epochs or 0) // 5)
        return f"local.epochs = {spec.epochs} is probably too many {where}; try --set local.epochs={few}"
    return f"local.lr = {spec.lr:g} may not suit {where}; try headwater tune {experiment.config.method}"
