"""Tuning by successive halving: short runs with each setting, of which the better ones on the validation set go on.

Every method that is compared gets the same number of settings and rounds: that of the method with the fewest, where
keys or grids differ. The validation set takes the place of the test set in these runs, so the test set is not used.
The better third goes on in each step, at least two settings, until two are left, and these are trained for the whole
budget. A run that goes on is continued, not
repeated. What was chosen and what it cost is in `tune.json`; the runs themselves are removed at the end.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.algorithms import ALGORITHMS
from headwater.callbacks import Callback, StopRun
from headwater.config.fields import plain
from headwater.core.records import parse_json
from headwater.core.rng import stream
from headwater.errors import ConfigError, Diverged, TaskError
from headwater.report.runs import TUNING
from headwater.sweep import identity
from headwater.training.checkpoint import write_whole

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.training.experiment import Experiment
    from headwater.training.result import Event

FILE, CELLS = "tune.json", TUNING
SHARE, LEAST = 5, 3  # the budget of a setting: one in five of the run's rounds, at least three
KEPT = 3  # one in so many settings goes on
LADDER = (1 / 9, 1 / 3, 1.0, 3.0, 9.0)  # times the default
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # the same for whole numbers
Point = dict[str, str]  # key → value, as on the command line
Axis = tuple[str, Sequence[str]]  # a key, and its values; none: the default grid
Watch = Callable[["Event"], None] | None
Trial = Callable[[str], AbstractContextManager[Watch]]  # name of a run → its progress


@dataclass(frozen=True)
class Rung:
    """A step: so many settings are trained until they have so many rounds."""

    settings: int
    rounds: int


def rungs(settings: int, rounds: int) -> list[Rung]:
    """The steps from all settings to the last two.

    Args:
        settings: how many there are.
        rounds: the budget of those that reach the end.
    """
    counts = [settings]
    while counts[-1] > 2:
        counts.append(max(2, math.ceil(counts[-1] / KEPT)))
    last = len(counts) - 1
    return [Rung(count, max(1, round(rounds / KEPT ** (last - at)))) for at, count in enumerate(counts)]


def grid_for(config: Config, axes: Sequence[Axis]) -> list[Axis]:
    """The axes that a method has, each with its values.

    Args:
        config: the resolved configuration of the method, whose values are the defaults.
        axes: keys with values; without values, the grid is the paper's or a ladder around the default.

    Raises:
        ConfigError: a key has no number as its default, so that there is no ladder.
    """
    found: list[Axis] = []
    for key, values in axes:
        section, _, name = key.rpartition(".")
        table = config.tree().get(section, {}) if section else config.tree()
        if name not in table:
            continue  # another method's key
        found.append((key, values or _of_paper(config, key) or ladder(key, plain(table[name]))))
    return found


def _of_paper(config: Config, key: str) -> tuple[str, ...]:
    """The grid of the method's paper; empty if there is none, or it is one of rates for another optimizer."""
    if key == "local.lr" and config.tree()["local"]["optimizer"] != "sgd":
        return ()
    return ALGORITHMS.info(config.method).grids.get(key, ())


def ladder(key: str, default: Any) -> tuple[str, ...]:
    """Five values around a default."""
    if isinstance(default, bool) or not isinstance(default, int | float) or default <= 0:
        raise ConfigError(f"there is no default grid for {key}, which is {default!r}; give values: {key}=V1,V2")
    if isinstance(default, int):
        return tuple(dict.fromkeys(str(max(1, round(default * step))) for step in STEPS))
    return tuple(f"{default * step:.2g}" for step in LADDER)


def points_of(axes: Sequence[Axis]) -> list[Point]:
    """Every combination of values."""
    keys = [key for key, _ in axes]
    return [dict(zip(keys, values, strict=True)) for values in product(*(values for _, values in axes))]


def fewest(configs: Sequence[Config], axes: Sequence[Axis]) -> int:
    """How many settings each method tries, so that all try as many: those of the method that has the fewest.

    Args:
        configs: the resolved configurations of the methods; those without any of the keys do not count.
        axes: keys and values.
    """
    grids = [grid for config in configs if (grid := grid_for(config, axes))]
    return min((len(points_of(grid)) for grid in grids), default=0)


def thinned(points: Sequence[Point], most: int, config: Config) -> list[Point]:
    """At most so many of the settings, drawn by the run's seed; what the method has by default is always among them.

    Args:
        points: the settings of a method, in the order of the grid.
        most: how many are tried.
        config: the resolved configuration of the method.
    """
    if len(points) <= most:
        return list(points)
    usual = [at for at, point in enumerate(points) if all(_is_default(config, *each) for each in point.items())][:1]
    others = [at for at in range(len(points)) if at not in usual]
    drawn = stream(config.seed, "tune", config.method).permutation(len(others))[: most - len(usual)]
    return [points[at] for at in sorted([*usual, *(others[number] for number in drawn)])]


def _is_default(config: Config, key: str, value: str) -> bool:
    section, _, name = key.rpartition(".")
    default = plain((config.tree().get(section, {}) if section else config.tree())[name])
    return value in (str(default), f"{default:.2g}" if isinstance(default, float) else "")


def budget_of(rounds: int) -> int:
    """The default budget of a setting for a run of so many rounds."""
    return max(LEAST, rounds // SHARE)


def tune(
    points: Sequence[Point],
    configs: Sequence[Config],
    prepare: Callable[[Config], Experiment],
    out: Path,
    rounds: int,
    trial: Trial,
) -> dict[str, Any]:
    """Choose among settings.

    Args:
        points: the settings.
        configs: the configuration of each.
        prepare: makes an experiment of a configuration.
        out: directory for tune.json; what is found there of the same settings is used.
        rounds: the budget of a setting that reaches the end.
        trial: shows the progress of a run.

    Returns:
        The content of tune.json: `best`, `rows` with the validation accuracy of each setting, `rungs` and `cost`.

    Raises:
        ConfigError: there is no validation set, or every setting diverged.
    """
    asked = hashlib.sha256(json.dumps([rounds, [identity(config) for config in configs]]).encode()).hexdigest()
    file = out / FILE
    if (known := _known(file)) and known.pop("asked_sha256", None) == asked:
        return known
    steps = rungs(len(points), rounds)
    rows: list[dict[str, Any]] = [{"settings": point, "validation_accuracy": None, "rounds": 0} for point in points]
    left = list(range(len(points)))
    for rung in steps:
        for at in left:
            with trial(", ".join(f"{key}={value}" for key, value in points[at].items())) as watch:
                rows[at] |= _train(prepare(configs[at]), out / CELLS / str(at), rounds, rung.rounds, watch)
        left.sort(key=lambda at: _order(rows[at]), reverse=True)
        left = [at for at in left if rows[at]["validation_accuracy"] is not None]
        if not left:
            raise ConfigError(f"every setting diverged, the first with: {rows[0]['failed']}")
        following = steps[steps.index(rung) + 1 :]
        left = left[: following[0].settings] if following else left[:1]
    cost = {
        "runs": len(points),
        "rounds": sum(row["rounds"] for row in rows),
        "seconds": round(sum(row.pop("seconds", 0.0) for row in rows), 3),
    }
    content = {"rounds": rounds, "rows": rows, "best": points[left[0]], "cost": cost}
    content["rungs"] = [{"settings": rung.settings, "rounds": rung.rounds} for rung in steps]
    out.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(content | {"asked_sha256": asked}, indent=1) + "\n")
    shutil.rmtree(out / CELLS, ignore_errors=True)
    return content


def _known(file: Path) -> dict[str, Any]:
    """What tune.json holds; nothing if there is none, or a damaged one, which is written again."""
    try:
        known = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def at_edge(found: Mapping[str, Any], key: str) -> int:
    """1 if the chosen number is the largest of three or more that were tried, −1 if it is the smallest; else 0.

    Args:
        found: the content of tune.json.
        key: one of the keys that were tuned.
    """
    try:
        tried, best = {float(row["settings"][key]) for row in found["rows"]}, float(found["best"][key])
    except ValueError:  # words have no order
        return 0
    return 0 if len(tried) < 3 else (best == max(tried)) - (best == min(tried))


def tuned_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """What result.json of a run with the chosen settings says of the choice."""
    return {"settings": found["best"], "tried": len(found["rows"]), "budget": found["rounds"], **found["cost"]}


class _Until(Callback):
    """Stops a run after a round, so that it can be continued."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round_end(self, row: dict[str, Any]) -> None:
        if row["round"] >= self.rounds:
            raise StopRun


def _train(experiment: Experiment, out: Path, rounds: int, until: int, watch: Watch) -> dict[str, Any]:
    """Train a setting up to a round, with the validation set in the place of the test set."""
    from headwater.training.loop import train

    split = experiment.split
    if not len(split.validation):
        raise ConfigError("tuning judges settings on the validation set; set data.validation above 0")
    config = experiment.config.merged({"rounds": rounds, "eval_every": rounds})
    judged = replace(experiment, config=config, split=replace(split, test=split.validation))
    stops = [_Until(until)] if until < rounds else []
    try:
        run = train(judged, out=out, watch=watch, callbacks=stops)
    except (Diverged, TaskError) as error:
        return {"validation_accuracy": None, "failed": str(error)}
    loss = run.result["loss"]
    return {
        "validation_accuracy": run.accuracy,
        "validation_loss": loss if loss is not None and math.isfinite(loss) else None,
        "rounds": len(run.history),
        "seconds": run.result["seconds"],
    }


def _order(row: Mapping[str, Any]) -> tuple[float, float]:
    accuracy, loss = row["validation_accuracy"], row.get("validation_loss")
    return (-1.0 if accuracy is None else accuracy, -math.inf if loss is None else -loss)
