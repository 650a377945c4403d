"""Facts about a cell of a sweep that its result does not hold; they are known before it is trained."""

from __future__ import annotations

from headwater.algorithms import REFERENCE
from headwater.training.experiment import Experiment


def facts_of(experiment: Experiment) -> dict[str, int]:
    """Facts for a paper's table.

    Returns:
        `parameters_held`: parameters of all models that a client holds while it trains. `public_samples`: inputs that
        all parties know and that the method learns from.
    """
    method = experiment.method
    added = [spec.count() for name, spec in experiment.models.items() if name not in experiment.tree.archs]
    return {
        "parameters_held": (1 + method.reference_models()) * experiment.model.count() + sum(added),
        "public_samples": len(experiment.split.reference) if REFERENCE in method.INFO.needs else 0,
    }
