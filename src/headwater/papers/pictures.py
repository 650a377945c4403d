"""Figures of the papers as PNG files: curves, bars, accuracy before and after fusion, and decision boundaries.

All but the last take cells: {column: {row: [rows of rounds.jsonl, for each seed]}}.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from headwater.report import charts, style
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
SIDE = 250  # pixels of a panel
UP = "Accuracy, %"
Floats = np.ndarray[Any, np.dtype[np.float64]]
STEPS = 121  # grid points in each direction, for decision boundaries


def curves(cells: Cells, path: Path, *, key: str = AFTER) -> Path:
    """Accuracy by round: one panel per column, one curve per row, with a band from the lowest to the highest seed.

    Args:
        cells: the rounds of all runs.
        path: the PNG file; also returned.
        key: key of the rows to draw.
    """
    names = _rows(cells)
    panels = {
        column: _lines({name: over_seeds(rows.get(name, ()), key) for name in names}) for column, rows in cells.items()
    }
    return _write(path, panels, shared=True)


def before_after(cells: Cells, path: Path) -> Path:
    """Accuracy of each round's average before fusion and of the fused model after it; one panel per cell."""
    cells = _merged(cells)
    panels = {}
    for row in _rows(cells):
        for column in cells:
            if row not in cells[column]:
                continue
            before, after = (over_seeds(cells[column][row], key) for key in (BEFORE, AFTER))
            if not before:
                raise ConfigError(
                    f"{column}, {row} has no accuracy before fusion; set algorithm.before_fusion = true for feddf"
                )
            spec = _lines({"before fusion": before, "after fusion": after})
            between = [
                {"round": at, "before": low, "after": high}
                for (at, low, *_), (_, high, *_) in zip(before, after, strict=False)
            ]
            places = {"y": {"field": "before", "type": "quantitative"}, "y2": {"field": "after"}}
            gap = {"data": {"values": between}, "mark": {"type": "area", "color": "var(--grid)", "opacity": 1}}
            spec["layer"].insert(0, gap | {"encoding": places | {"color": {"value": "var(--grid)"}}})
            panels[f"{column}\n{row}"] = spec
    return _write(path, panels, wide=len(cells), shared=True)


def fusion(cells: Cells, path: Path) -> Path:
    """Accuracy by round. Columns of the same runs share a panel, with two curves per row: before and after fusion."""
    merged, names = _merged(cells), _rows(cells)
    panels = {}
    for column, rows in merged.items():
        found = {name: over_seeds(rows.get(name, ()), AFTER) for name in names}
        if column not in cells:  # merged from two
            before = {f"{name}, before": over_seeds(runs, BEFORE) for name, runs in rows.items()}
            after = {f"{name}, after": over_seeds(runs, AFTER) for name, runs in rows.items()}
            found = {name: curve for pair in zip(before.items(), after.items(), strict=True) for name, curve in pair}
        panels[column] = _lines(found)
    return _write(path, panels, wide=2, shared=True)


def bars(cells: Cells, path: Path, *, key: str = AFTER) -> Path:
    """Accuracy after the last round: one panel per column, one bar per row, with the lowest and the highest seed."""
    panels = {}
    for column, rows in cells.items():
        found = {name: over_seeds(runs, key)[-1:] for name, runs in rows.items()}
        known = [(name, *points[0][1:]) for name, points in found.items() if points]
        names = [name for name, *_ in known]
        values = [{"name": name, "value": value, "low": low, "high": high} for name, value, low, high in known]
        look = charts.appearance(names)["color"]
        across = {"field": "name", "type": "nominal", "sort": names, "title": None, "axis": {"labelAngle": -45}}
        panels[column] = {
            "data": {"values": values},
            "encoding": {"x": across},
            "layer": [
                {"mark": "bar", "encoding": {"y": {"field": "value", "type": "quantitative", "title": UP}, **look}},
                {
                    "transform": [{"filter": "datum.high > datum.low"}],
                    "mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5},
                    "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
                },
            ],
        }
    return _write(path, panels)


def over_seeds(runs: Sequence[History], key: str) -> Measured:
    """A value by round over the seeds that have it."""
    found: dict[int, list[float]] = {}
    for rows in runs:
        for row in rows:
            if row.get(key) is not None:
                found.setdefault(int(row["round"]), []).append(100 * float(row[key]))
    return [(number, fmean(values), min(values), max(values)) for number, values in sorted(found.items())]


PICTURES: dict[str, Callable[[Cells, Path], Path]] = {
    "curves": curves,
    "before_after": before_after,
    "fusion": fusion,
    "bars": bars,
}


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
    panels = {}
    for name, predict in found.panels.items():
        probs = predict(grid).double().numpy()
        mixed = (probs @ colours[: probs.shape[1]]).reshape(STEPS, STEPS, 3)
        image = np.clip(0.35 + 0.65 * mixed, 0, 1)
        x, y = found.points[name]
        dots = [{"x": float(a), "y": float(b), "name": str(int(label))} for (a, b), label in zip(x, y, strict=True)]
        ends = {"scale": {"domain": [-REACH, REACH], "nice": False}, "axis": {"grid": False, "title": None}}
        look = charts.appearance([str(label) for label in range(probs.shape[1])])["color"]
        panels[f"{name}\n{100 * found.accuracy[name]:.1f} % of the test set"] = {
            "layer": [
                {
                    "data": {"values": [{"url": _data_url(image[::-1])}]},
                    "mark": {"type": "image", "width": SIDE, "height": SIDE, "align": "left", "baseline": "top"},
                    "encoding": {"url": {"field": "url"}, "x": {"value": 0}, "y": {"value": 0}},
                },
                {
                    "data": {"values": dots},
                    "mark": {
                        "type": "circle",
                        "clip": True,
                        "size": 16,
                        "opacity": 1,
                        "stroke": "white",
                        "strokeWidth": 0.4,
                    },
                    "encoding": {at: {"field": at, "type": "quantitative", **ends} for at in "xy"} | look,
                },
            ]
        }
    return _write(path, panels, wide=len(panels))


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
            state = experiment.after_round(fed, state)
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


def _lines(curves: Mapping[str, Measured]) -> charts.Spec:
    rows = [
        {"name": name, "round": at, "value": value, "low": low, "high": high}
        for name, points in curves.items()
        for at, value, low, high in points
    ]
    return charts.lines(rows, [*curves], up=UP, form="~r")


def _write(path: Path, panels: Mapping[str, charts.Spec], *, wide: int = WIDE, shared: bool = False) -> Path:
    """Write panels with these titles, `wide` in a row; `shared` gives them the same vertical axis."""
    if not panels:
        raise ConfigError(f"there is nothing to draw for {path.name}: no cell has a finished run yet")
    titled = [spec | {"width": SIDE, "height": SIDE, "title": title.split("\n")} for title, spec in panels.items()]
    resolve = {"scale": {"y": "shared" if shared else "independent"}}
    return charts.picture({"concat": titled, "columns": wide, "resolve": resolve}, path)


def _data_url(image: Floats) -> str:
    """An image as the address that a chart reads it from."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray((255 * image).round().astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BILINEAR).save(
        file, "png"
    )
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


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
