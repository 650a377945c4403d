"""The curves as a PNG file, for papers and slides. Nothing is drawn on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.errors import UserError
from headwater.report import style
from headwater.report.groups import Group, group
from headwater.report.numbers import size_unit
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
    if any(each.points[-1].bytes > 0 and largest > 20 * each.points[-1].bytes for each in series):
        right.set_xscale("log")
    left.set_xlabel("Round")
    left.set_ylabel("Accuracy, %")
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set_xlabel(f"Bytes between server and sectors, {unit}")
    for axes in (left, right):
        axes.grid(True, color=style.LIGHT.grid)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if not series:
            axes.text(0.5, 0.5, "no accuracy measured yet", ha="center", va="center", transform=axes.transAxes)
    if series:
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=min(4, len(series)), frameon=False)
    try:
        figure.savefig(path, metadata={"Software": None})
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written ({error.strerror}); choose another --out") from error
    return path


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
    return {"color": style.LIGHT.colours[colour], "linestyle": (0, dash) if dash else "-"}
