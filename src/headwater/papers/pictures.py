"""Figures of the papers as PNG files: curves, bars, accuracy before and after fusion, and decision boundaries.

All but the last take cells: {column: {row: [rows of rounds.jsonl, for each seed]}}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.config import Config
from headwater.core.federation import SERVER
from headwater.core.params import Params
from headwater.core.sampling import participants
from headwater.core.tree import ROOT
from headwater.data.datasets.embedded import REACH
from headwater.engines.inline import Inline
from headwater.errors import ConfigError
from headwater.report import style
from headwater.report.figures import add_band, add_grid, add_legend, line_style, new_figure
from headwater.tasks.average import initial
from headwater.tasks.ensemble import ensemble
from headwater.tasks.task import TaskContext
from headwater.training.experiment import Experiment, prepare
from headwater.training.opening import open_federation, run_context

History = Sequence[Mapping[str, Any]]
Cells = Mapping[str, Mapping[str, Sequence[History]]]
Measured = list[tuple[int, float, float, float]]  # round; mean, lowest and highest seed in per cent
BEFORE, AFTER = "average_accuracy", "accuracy"
WIDE = 3  # panels in a row
STEPS = 121  # grid points in each direction, for decision boundaries


def curves(cells: Cells, path: Path, *, key: str = AFTER) -> Path:
    """Accuracy by round: one panel per column, one curve per row, with a band from the lowest to the highest seed.

    Args:
        cells: the rounds of all runs.
        path: the PNG file; also returned.
        key: key of the rows to draw.
    """
    names = _rows(cells)
    with _panels(path, list(cells)) as panels:
        for column, axes in panels:
            for slot, name in enumerate(names):
                _curve(axes, over_seeds(cells[column].get(name, ()), key), name, slot)
    return path


def before_after(cells: Cells, path: Path) -> Path:
    """Accuracy of each round's average before fusion and of the fused model after it; one panel per cell."""
    cells = _merged(cells)
    places = [(column, row) for row in _rows(cells) for column in cells if row in cells[column]]
    with _panels(path, [f"{column}\n{row}" for column, row in places], wide=len(cells)) as panels:
        for (column, row), (_, axes) in zip(places, panels, strict=True):
            drawn = [over_seeds(cells[column][row], key) for key in (BEFORE, AFTER)]
            if not drawn[0]:
                raise ConfigError(
                    f"{column}, {row} has no accuracy before fusion; set algorithm.before_fusion = true for feddf"
                )
            for slot, (name, points) in enumerate(zip(("before fusion", "after fusion"), drawn, strict=True)):
                _curve(axes, points, name, slot)
            rounds, means = [point[0] for point in drawn[0]], [[point[1] for point in points] for points in drawn]
            axes.fill_between(rounds, *means, color=style.LIGHT.grid, linewidth=0)
    return path


def bars(cells: Cells, path: Path, *, key: str = AFTER) -> Path:
    """Accuracy after the last round: one panel per column, one bar per row, with the lowest and the highest seed."""
    with _panels(path, list(cells), "", "Accuracy, %", legend=False) as panels:
        for column, axes in panels:
            found = {name: over_seeds(runs, key)[-1:] for name, runs in cells[column].items()}
            known = {name: points[0] for name, points in found.items() if points}
            middles, lows, highs = (np.array([point[i] for point in known.values()]) for i in (1, 2, 3))
            colours = [style.LIGHT.colours[style.look(slot)[0]] for slot in range(len(known))]
            away = np.stack([middles - lows, highs - middles]) if (lows < highs).any() else None
            axes.bar(range(len(known)), middles, color=colours, yerr=away, ecolor=style.LIGHT.ink, capsize=3)
            axes.set_xticks(range(len(known)), list(known), rotation=45, ha="right", fontsize=8)
    return path


def over_seeds(runs: Sequence[History], key: str) -> Measured:
    """A value by round over the seeds that have it."""
    found: dict[int, list[float]] = {}
    for rows in runs:
        for row in rows:
            if row.get(key) is not None:
                found.setdefault(int(row["round"]), []).append(100 * float(row[key]))
    return [(number, fmean(values), min(values), max(values)) for number, values in sorted(found.items())]


PICTURES: dict[str, Callable[[Cells, Path], Path]] = {"curves": curves, "before_after": before_after, "bars": bars}


# -- decision boundaries


@dataclass(frozen=True)
class FusionRound:
    """The models of one round: local models, their average, the ensemble and the fused model, by title.

    Args:
        panels: functions from inputs to class probabilities.
        points: inputs and labels to draw over each.
        accuracy: accuracy on the test set.
        fused: parameters of the fused model.
    """

    panels: Mapping[str, Callable[[Tensor], Tensor]]
    points: Mapping[str, tuple[Tensor, Tensor]]
    accuracy: Mapping[str, float]
    fused: Params


def boundaries(config: Config, path: Path) -> Path:
    """Draw class probabilities over the plane for each model of a FedDF round, as mixtures of the class colours."""
    found = fusion_round(prepare(config))
    line = torch.linspace(-REACH, REACH, STEPS)
    grid = torch.cartesian_prod(line, line).view(STEPS, STEPS, 2).transpose(0, 1).reshape(-1, 2)
    colours = np.array([_rgb(style.LIGHT.colours[i]) for i in range(len(style.LIGHT.colours))])
    titles = {name: f"{name}\n{100 * found.accuracy[name]:.1f} % of the test set" for name in found.panels}
    with _panels(path, list(titles.values()), "", "", legend=False, wide=len(titles)) as panels:
        for (name, predict), (_, axes) in zip(found.panels.items(), panels, strict=True):
            probs = predict(grid).double().numpy()
            mixed = (probs @ colours[: probs.shape[1]]).reshape(STEPS, STEPS, 3)
            image = np.clip(0.35 + 0.65 * mixed, 0, 1)
            axes.imshow(image, origin="lower", extent=(-REACH, REACH) * 2, interpolation="bilinear")
            x, y = found.points[name]
            axes.scatter(*x.T, s=7, c=colours[y.numpy()], edgecolors="white", linewidths=0.3)
            axes.grid(False)
            axes.set_aspect("equal")
    return path


def fusion_round(experiment: Experiment) -> FusionRound:
    """Train with the method's own rounds, as a run does, and return the models of the last round."""
    split, config = experiment.split, experiment.config
    if split.shape != (2,) or not getattr(experiment.method, "before_fusion", False):
        raise ConfigError(
            "decision boundaries are drawn of feddf with algorithm.before_fusion = true and data.name = 'toy2d', or "
            f"other data of two features; got {config.method!r} and {config.data.name!r}"
        )
    context = run_context(experiment)
    engine = Inline()
    engine.start(context)
    try:
        fed = open_federation(experiment, engine, context)
        state = experiment.method.init(fed, fed.run(initial, at=SERVER, arch=experiment.model.name))
        for number in range(1, config.rounds + 1):
            fed.keep(state)
            present = participants(experiment.tree, config.partition.participation, config.seed, number)
            fed = fed.begin(number, present)
            state = experiment.method.round(fed, state)
        local, mean, fused = (fed.read(x) for x in (state.team.members, state.starts["average"], state.model))
    finally:
        engine.close()
    ctx = TaskContext(context, ROOT, ("picture",))
    titles = {client: f"local model {at}" for at, client in enumerate(local, 1)}
    members = {titles[client]: {client: model} for client, model in local.items()}
    members |= {"average": {"": mean}, "ensemble": local, "fused": {"": fused}}

    def predictor(models: Mapping[str, Params]) -> Callable[[Tensor], Tensor]:
        options = {"mix": state.team.mix, "weights": state.team.weights}
        return lambda x: ensemble(ctx, models, x, **options).probs

    panels = {title: predictor(models) for title, models in members.items()}
    own = {titles[client]: split.train.take(experiment.rows[client]) for client in local}
    points = {title: own.get(title, split.test) for title in panels}
    right = {title: panel(split.test.x).argmax(1) == split.test.y for title, panel in panels.items()}
    accuracy = {title: float(each.double().mean()) for title, each in right.items()}
    return FusionRound(panels, {title: (rows.x, rows.y) for title, rows in points.items()}, accuracy, fused)


# -- shared


@contextmanager
def _panels(
    path: Path,
    titles: Sequence[str],
    across: str = "Round",
    up: str = "Accuracy, %",
    *,
    legend: bool = True,
    wide: int = WIDE,
) -> Iterator[list[tuple[str, Any]]]:
    """Axes with these titles, on a figure that is written when the block ends."""
    if not titles:
        raise ConfigError(f"there is nothing to draw for {path.name}: no cell has a finished run yet")
    beside, below = min(wide, len(titles)), ceil(len(titles) / wide)
    figure = new_figure(3.6 * beside, 3.3 * below + 0.6)
    every = (
        figure.subplots(below, beside, squeeze=False, sharey="row" if across == "Round" else False).flatten().tolist()
    )
    for axes, title in zip(every, titles, strict=False):
        axes.set_title(title, fontsize=10)
        add_grid(axes)
        axes.set_xlabel(across)
    for axes in every[:: len(every) // below]:
        axes.set_ylabel(up)
    for axes in every[len(titles) :]:
        axes.set_visible(False)
    yield list(zip(titles, every, strict=False))
    named = {name: handle for axes in every for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if legend:
        add_legend(figure, list(named.values()))
    figure.savefig(path)


def _curve(axes: Any, points: Measured, name: str, slot: int) -> None:
    if not points:
        return
    rounds, means, lows, highs = zip(*points, strict=True)
    look = line_style(slot)
    axes.plot(rounds, means, label=name, marker="o" if len(rounds) <= 26 else None, markersize=3, **look)
    add_band(axes, rounds, lows, highs, look["color"])


def _merged(cells: Cells) -> Cells:
    """Merge columns that show two measures of the same runs; the common parts of their names are the new name."""
    found: dict[str, Mapping[str, Sequence[History]]] = {}
    for column, rows in cells.items():
        twin = next((name for name, known in found.items() if known == rows), None)
        if twin is None:
            found[column] = rows
        elif short := ", ".join(a for a, b in zip(twin.split(", "), column.split(", "), strict=False) if a == b):
            found = {short if name == twin else name: known for name, known in found.items()}
    return found


def _rows(cells: Cells) -> list[str]:
    """All rows in the order of the columns; a row has the same colour in every panel."""
    return list(dict.fromkeys(name for rows in cells.values() for name in rows))


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue
