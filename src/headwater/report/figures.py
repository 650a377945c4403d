"""Curves and splits as PNG files, and what all PNG figures share. matplotlib, slow to import, is imported on use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.report import style
from headwater.report.client_data import class_names, client_sectors
from headwater.report.grouping import MethodRuns, Series, accuracy, as_groups
from headwater.report.numbers import short_size, size_unit
from headwater.report.runs import RunRecord


def curves(runs: Sequence[RunRecord] | Sequence[MethodRuns], path: Path) -> Path:
    """Draw accuracy by round and by bytes: the mean over seeds, and a band from the lowest to the highest seed.

    Args:
        runs: runs, which are grouped by method, or groups.
        path: the PNG file; also returned.
    """
    series = accuracy(as_groups(runs))
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2, sharey=True)
    largest = max((each.points[-1].bytes for each in series), default=0.0)
    unit, scale = size_unit(largest)
    for each in series:
        _draw(left, each, [float(point.round) for point in each.points])
        if each.points[-1].bytes > 0:
            _draw(right, each, [point.bytes / scale for point in each.points])
        else:
            right.axhline(100 * each.points[-1].value, **line_style(each.slot), linewidth=1.2, alpha=0.8)
    right.set_xlabel(f"Bytes between server and sectors, {unit}")
    if any(0 < 20 * each.points[-1].bytes < largest for each in series):
        right.set_xscale("log")
        right.set_xlabel("Bytes between server and sectors")
        right.xaxis.set_major_formatter(lambda value, _: short_size(value * scale))
    left.set_xlabel("Round")
    left.set_ylabel("Accuracy, %")
    left.xaxis.get_major_locator().set_params(integer=True)
    for axes in (left, right):
        add_grid(axes)
        if not series:
            axes.text(0.5, 0.5, "no accuracy measured yet", ha="center", va="center", transform=axes.transAxes)
    if series:
        add_legend(figure, left.get_legend_handles_labels()[0])
    figure.savefig(path)
    return path


def split(run: RunRecord, path: Path) -> Path | None:
    """Draw samples by client and class; None if the run has no counts."""
    import numpy as np

    from headwater.partition.partition import Partition
    from headwater.partition.summary import MOST_DRAWN, figure

    manifest = run.partition or {}
    counts, rule = manifest.get("counts"), manifest.get("rule")
    if not isinstance(counts, list) or not counts or not np.sum(counts):
        return None
    registered = rule.get("clients") if isinstance(rule, dict) else None
    table = np.asarray(counts[:MOST_DRAWN] if registered else counts, dtype=np.int64)
    # The labels themselves are not recorded; any labels with these counts give the same figure.
    clients, classes = table.shape
    labels = np.concatenate([np.repeat(np.arange(classes), row) for row in table])
    bounds = np.concatenate([[0], np.cumsum(table.sum(axis=1))])
    indices = tuple(np.arange(bounds[at], bounds[at + 1]) for at in range(clients))
    known = client_sectors(run.partition)
    sectors = tuple(known.get(client, 0) for client in range(clients))
    if len(set(sectors)) <= max(sectors):  # the first clients of a large population may not cover all sectors
        return None
    names = class_names(manifest.get("classes"), classes)
    return figure(Partition(indices, sectors), labels, classes, path, names, registered)


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure that is not connected to a screen; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor=style.LIGHT.surface)
    FigureCanvasAgg(figure)
    return figure


def line_style(slot: int) -> dict[str, Any]:
    """matplotlib's keyword arguments for curve number `slot`."""
    colour, dash = style.look(slot)
    return {"color": style.LIGHT.colours[colour], "linestyle": (0, [part / 2 for part in dash]) if dash else "-"}


def add_band(axes: Any, places: Sequence[float], lows: Sequence[float], highs: Sequence[float], colour: str) -> None:
    """Shade the range from the lowest to the highest seed; with one seed there is none."""
    if list(lows) != list(highs):
        axes.fill_between(places, lows, highs, color=colour, alpha=0.14, linewidth=0)


def add_grid(axes: Any) -> None:
    axes.grid(True, color=style.LIGHT.grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def add_legend(figure: Any, handles: Sequence[Any]) -> None:
    """A legend above the figure in up to four columns, as many as fit."""
    for columns in range(min(4, len(handles)), 0, -1):
        legend = figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _draw(axes: Any, series: Series, places: Sequence[float]) -> None:
    look = line_style(series.slot)
    full = len(series.full)
    values = [100 * point.value for point in series.points]
    marker = "o" if len(values) <= 26 else None
    name = series.label.replace("$", r"\$")  # matplotlib would read a formula
    axes.plot(places[:full], values[:full], label=name, marker=marker, markersize=3.5, **look)
    if series.tail:
        axes.plot(places[full - 1 :], values[full - 1 :], alpha=0.45, **look)
    lows, highs = ([100 * getattr(point, end) for point in series.points] for end in ("low", "high"))
    add_band(axes, places, lows, highs, look["color"])
