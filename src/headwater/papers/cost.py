"""About how long a cell takes on one core, from its settings alone: for estimates, and for a scale that must fit.

The numbers are of no particular machine. What counts is that they are the same everywhere: the settings of a scale that
is made to fit follow from them, and a table that was begun on one machine can be carried on on another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headwater.sweep import Size

FORWARD = 1 / 3  # of a sample that is learnt from
STEP = 2.0  # milliseconds that a step costs, however small
START = 300.0  # and a run
TASK = 3.0  # and a client's turn
# Passes beside the one that plain training takes.
HEAVIER = {"moon": 1.7, "fedalign": 1.6, "fedhkd": 1.2, "fedhkd-star": 1.2, "fedproto": 1.1, "fedgen": 1.3}
EVERYBODY = ("local", "fedmd", "fedproto")  # whose clients' models are all tested


def seconds(tree: Mapping[str, Any], size: Size, costs: Mapping[str, float]) -> float:
    """About, on one core; `tree` is a cell's whole configuration."""
    each = _sample(tree["model"], size, costs)
    part, data, rounds = tree["partition"], tree["data"], tree["rounds"]
    clients = part["clients"]
    method = tree["algorithm"]["name"]
    drawn = max(1.0, data["fraction"] * size.train)
    reference = min(data["reference_size"], drawn / 5)
    active = max(1, round(part["participation"] * clients))
    own = drawn * (0.7 if data["reference"] == "holdout" else 0.9) / clients
    pace = tree["algorithm"].get("sector_rounds", 1)
    local = _learnt(tree["local"], own, each) * HEAVIER.get(method, 1.0) * pace * active
    if method == "centralized":
        local = _learnt(tree["local"], own * clients, each)
    asked, taught = active * FORWARD * each, 0.0
    if method.startswith("fedhead"):
        taught += part["sectors"] * (_learnt(tree["sector"], own, each) + asked * own / part["sectors"])
    if tree["server"] and method != "fedhead":
        taught += _learnt(tree["server"], reference, each) + asked * reference
    if method == "fedmd":
        taught += active * reference * each * 2
    tests = math.ceil(rounds / tree["eval_every"]) * data["test_fraction"] * size.test * FORWARD * each
    tests *= clients if method in EVERYBODY else 1
    return float(START + rounds * (local + taught + active * TASK * pace) + tests) / 1000


def _learnt(stage: Mapping[str, Any], rows: float, each: float) -> float:
    """Milliseconds of one place's stage."""
    batch = stage.get("batch") or 32
    if stage.get("steps") is not None:
        steps, samples = stage["steps"], stage["steps"] * min(batch, rows)
    else:
        epochs = stage.get("epochs")
        epochs = 10 if epochs is None else epochs
        steps, samples = epochs * math.ceil(rows / batch), epochs * rows
    return float(steps * STEP + samples * each)


def _sample(model: Mapping[str, Any], size: Size, costs: Mapping[str, float]) -> float:
    name = model["name"]
    if name == "auto":
        small = len(size.shape) != 3 or size.shape[0] < 3
        name = ("bilstm" if size.tokens else "mlp" if len(size.shape) != 3 else "cnn") if small else "resnet8"
    cost = costs.get(name, 1.0)
    if name == "cnn":
        widths = model.get("widths", (32, 64))
        cost *= sum(widths) / 24
    if name == "bilstm":
        cost *= sum(model.get("widths", (128, 64))) / 192 * 0.8 + 0.2
    if len(size.shape) == 3 and name not in ("mlp", "linear"):
        cost *= size.shape[1] * size.shape[2] / 1024
    return cost * max(1.0, float(model.get("width", 1)) ** 2 * 0.75)
