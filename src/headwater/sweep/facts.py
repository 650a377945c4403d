"""What a table may ask of a cell and a run's own result does not tell: known before it is trained."""

from __future__ import annotations

from headwater.algorithms import ALGORITHMS, REFERENCE
from headwater.training.experiment import Experiment

# Models of the clients' size beside the one that is trained: what it is pulled to, contrasted with or corrected by.
BESIDE = {
    "fedprox": 1,
    "hfedprox": 1,
    "scaffold": 2,
    "hscaffold": 2,
    "feddyn": 2,
    "hfeddyn": 2,
    "mtgc": 2,
}


def facts_of(experiment: Experiment) -> dict[str, int]:
    """`parameters_held`: numbers of all models that a client holds while it trains. `public_samples`: inputs that are
    known to all and that the method learns from."""
    method, config = experiment.method, experiment.config
    beside = BESIDE.get(config.method, 0)
    if config.method == "moon":
        beside = 1 + int(getattr(method, "remembered", 1))
    elif config.method == "feddf" and float(getattr(method, "mu", 0.0)):
        beside = 1
    brought = [spec.count() for name, spec in experiment.models.items() if name not in experiment.tree.archs]
    needs = dict(ALGORITHMS[config.method].extra)["needs"] if config.method in ALGORITHMS else ""
    return {
        "parameters_held": (1 + beside) * experiment.model.count() + sum(brought),
        "public_samples": len(experiment.split.reference) if REFERENCE in needs else 0,
    }
