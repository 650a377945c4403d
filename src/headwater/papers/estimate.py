"""How long a cell of a table takes, for scales with a time limit.

The constants are fixed and not measured on the machine at hand: the settings of a scale with a time limit follow from
them, so a table that was begun on one machine can be continued on another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headwater.algorithms import ALGORITHMS
from headwater.data import HOLDOUT
from headwater.models import auto
from headwater.papers.scales import settings
from headwater.sweep import DataSummary

FORWARD = 1 / 3  # cost of a forward pass, relative to a training step on the same sample
STEP = 2.0  # milliseconds per training step, however small
START = 300.0  # milliseconds per run
TASK = 3.0  # milliseconds per client and round


def estimated_seconds(tree: Mapping[str, Any], size: DataSummary) -> float:
    """The time of one cell on one core, from its whole configuration and the size of its data set."""
    each = _sample_ms(tree["model"], size)
    part, data, rounds, options = tree["partition"], tree["data"], tree["rounds"], tree["algorithm"]
    clients, info = part["clients"], ALGORITHMS.info(options["name"])
    drawn = max(1.0, data["fraction"] * size.train)
    held_out = data["reference"] == HOLDOUT
    reference = min(data["reference_size"], drawn / 5) if held_out else data["reference_size"]
    active = max(1, round(part["participation"] * clients))
    own = drawn * (0.7 if held_out else 0.9) / clients
    pace = options.get("sector_rounds", 1)
    local = _stage_ms(tree["local"], own, each) * info.training_cost * pace * active
    if info.pooled:
        local = _stage_ms(tree["local"], own * clients, each)
    teachers, distilled = active * FORWARD * each, 0.0  # of all teachers per row; of all stages
    if info.family == "tree" and tree["sector"]:  # leaders distil
        distilled += part["sectors"] * (_stage_ms(tree["sector"], own, each) + teachers * own / part["sectors"])
    if tree["server"]:
        distilled += _stage_ms(tree["server"], reference, each) + teachers * reference
    distilled += active * reference * each * info.public_passes
    tests = math.ceil(rounds / tree["eval_every"]) * data["test_fraction"] * size.test * FORWARD * each
    tests *= clients if info.personal else 1
    return float(START + rounds * (local + distilled + active * TASK * pace) + tests) / 1000


def _stage_ms(stage: Mapping[str, Any], rows: float, each: float) -> float:
    """Milliseconds that a stage takes at one node with so many rows."""
    batch = stage.get("batch") or 32
    if stage.get("steps") is not None:
        steps, samples = stage["steps"], stage["steps"] * min(batch, rows)
    else:
        epochs = 10 if stage.get("epochs") is None else stage["epochs"]
        steps, samples = epochs * math.ceil(rows / batch), epochs * rows
    return float(steps * STEP + samples * each)


def _sample_ms(model: Mapping[str, Any], size: DataSummary) -> float:
    """Milliseconds of a training step per sample."""
    name = model["name"]
    if name == "auto":
        name = auto(size.shape, size.classes, size.tokens)
    cost = float(settings()["cost"].get(name, 1.0))
    if name == "cnn":
        cost *= sum(model.get("widths", (32, 64))) / 24
    if name == "bilstm":
        cost *= sum(model.get("widths", (128, 64))) / 192 * 0.8 + 0.2
    if len(size.shape) == 3 and name not in ("mlp", "linear"):
        cost *= size.shape[1] * size.shape[2] / 1024
    return cost * max(1.0, float(model.get("width", 1)) ** 2 * 0.75)
