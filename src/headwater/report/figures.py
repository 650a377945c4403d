"""Curves and split as PNG files, for papers and slides. Nothing is drawn on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.report import style
from headwater.report.groups import Group, group
from headwater.report.holdings import class_names, client_sectors
from headwater.report.numbers import short_size, size_unit
from headwater.report.runs import RunRecord
from headwater.report.series import Series, accuracy


def curves(runs: Sequence[RunRecord] | Sequence[Group], path: Path) -> Path:
    """Accuracy by round and by bytes side by side: the mean over seeds in a band from the lowest to the highest."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, and needed by nobody else
    from matplotlib.figure import Figure

    groups = [each for each in runs if isinstance(each, Group)]
    series = accuracy(groups or group([each for each in runs if isinstance(each, RunRecord)]).groups)
    figure = Figure(figsize=(11, 4.4), dpi=150, layout="constrained", facecolor=style.LIGHT.surface)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    largest = max((each.points[-1].bytes for each in series), default=0.0)
    unit, scale = size_unit(largest)
    for each in series:
        _draw(left, each, [float(point.round) for point in each.points])
        if each.points[-1].bytes > 0:
            _draw(right, each, [point.bytes / scale for point in each.points])
        else:
            right.axhline(100 * each.points[-1].value, **_look(each), linewidth=1.2, alpha=0.8)
    right.set_xlabel(f"Bytes between server and sectors, {unit}")
    if any(0 < 20 * each.points[-1].bytes < largest for each in series):
        right.set_xscale("log")
        right.set_xlabel("Bytes between server and sectors")
        right.xaxis.set_major_formatter(lambda value, _: short_size(value * scale))
    left.set_xlabel("Round")
    left.set_ylabel("Accuracy, %")
    left.xaxis.get_major_locator().set_params(integer=True)
    for axes in (left, right):
        axes.grid(True, color=style.LIGHT.grid)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if not series:
            axes.text(0.5, 0.5, "no accuracy measured yet", ha="center", va="center", transform=axes.transAxes)
    if series:
        style.legend(figure, left.get_legend_handles_labels()[0])
    figure.savefig(path)
    return path


def split(run: RunRecord, path: Path) -> Path | None:
    """Who holds what, by client and class; None when the run kept no counts."""
    import numpy as np

    from headwater.partition.base import Partition
    from headwater.partition.figure import MOST_DRAWN, figure

    manifest = run.partition or {}
    counts, rule = manifest.get("counts"), manifest.get("rule")
    if not isinstance(counts, list) or not counts or not np.sum(counts):
        return None
    registered = rule.get("clients") if isinstance(rule, dict) else None
    table = np.asarray(counts[:MOST_DRAWN] if registered else counts, dtype=np.int64)
    # the labels stay with the data; any that give these counts give the same picture
    clients, classes = table.shape
    labels = np.concatenate([np.repeat(np.arange(classes), row) for row in table])
    bounds = np.concatenate([[0], np.cumsum(table.sum(axis=1))])
    indices = tuple(np.arange(bounds[at], bounds[at + 1]) for at in range(clients))
    known = client_sectors(run.partition)
    sectors = tuple(known.get(client, 0) for client in range(clients))
    if len(set(sectors)) <= max(sectors):  # of a large population, the first clients may miss a sector
        return None
    names = class_names(manifest.get("classes"), classes)
    return figure(Partition(indices, sectors), labels, classes, path, names, registered)


def _draw(axes: Any, series: Series, places: Sequence[float]) -> None:
    look = _look(series)
    full = len(series.full)
    values = [100 * point.value for point in series.points]
    marker = "o" if len(values) <= 26 else None
    name = series.label.replace("$", r"\$")  # a dollar would begin a formula
    axes.plot(places[:full], values[:full], label=name, marker=marker, markersize=3.5, **look)
    if series.tail:
        axes.plot(places[full - 1 :], values[full - 1 :], alpha=0.45, **look)
    lows, highs = [100 * point.low for point in series.points], [100 * point.high for point in series.points]
    if lows != highs:
        axes.fill_between(places, lows, highs, color=look["color"], alpha=0.14, linewidth=0)


def _look(series: Series) -> dict[str, Any]:
    colour, dash = style.look(series.slot)
    return {"color": style.LIGHT.colours[colour], "linestyle": (0, [part / 2 for part in dash]) if dash else "-"}
