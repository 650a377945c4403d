"""The two pictures: gaps under their bounds, and one setting with and without the theorems' stopping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headwater.report.style import LIGHT

PICTURED = (2, 6, 20)
NAMES = {"fedavg": "FedAvg (24)", "fedhead": "FedHEAD (6)", "fedhead+": "FedHEAD+ (26)", "feddf": "FedDF (32)"}
MARKS = ("o", "s", "^", "D")
COLOURS = dict(zip(NAMES, LIGHT.colours, strict=False))


def bounds(rows: list[dict[str, Any]], path: Path) -> None:
    """Above, mean gaps (solid) and bounds (dashed) of some settings; below, how close each setting came."""
    figure = _figure((11, 7.4))
    grid = figure.add_gridspec(2, len(PICTURED), height_ratios=(1.25, 1))
    top = [figure.add_subplot(grid[0, i]) for i in range(len(PICTURED))]
    for axes, number in zip(top, PICTURED, strict=True):
        for row in rows:
            if row["setting"] != number:
                continue
            rounds, gaps, over = zip(*row["curve"], strict=True)
            look = {"color": COLOURS[row["method"]], "linewidth": 1.5}
            axes.plot(rounds, gaps, label=NAMES[row["method"]], **look)
            axes.plot(rounds, over, linestyle=(0, (4, 2)), **look)
        axes.set_title(f"setting {number}", fontsize=11)
        _plain(axes, "Round")
    top[0].set_ylabel("Loss above the optimum")
    below = figure.add_subplot(grid[1, :])
    for mark, method in zip(MARKS, NAMES, strict=True):
        mine = [row for row in rows if row["method"] == method]
        at = [row["setting"] + (MARKS.index(mark) - 1.5) * 0.16 for row in mine]
        shares = [row["largest_share"] for row in mine]
        below.plot(at, shares, mark, color=COLOURS[method], markersize=5, label=NAMES[method])
    below.axhline(1, color=LIGHT.ink, linewidth=1)
    below.set_yscale("log")
    below.set_xticks([row["setting"] for row in rows if row["method"] == "fedavg"])
    below.set_ylabel("Largest gap / bound, any round")
    below.set_xlabel("Setting")
    below.grid(True, axis="y", color=LIGHT.grid)
    below.set_axisbelow(True)
    below.spines[["top", "right"]].set_visible(False)
    handles, names = below.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)


def stopping(rows: list[dict[str, Any]], path: Path) -> None:
    """A panel a method: the gap with each way of stopping (solid) and its bound (dashed)."""
    methods = [name for name in NAMES if any(row["method"] == name for row in rows)]
    readings = list(dict.fromkeys(row["reading"] for row in rows))
    figure = _figure((11, 4.2))
    panels = figure.subplots(1, len(methods), sharey=True)
    for axes, method in zip(panels, methods, strict=True):
        for colour, reading in zip(LIGHT.colours, readings, strict=False):
            mine = [row for row in rows if row["method"] == method and row["reading"] == reading]
            rounds = [row["round"] for row in mine]
            axes.plot(rounds, [row["gap"] for row in mine], color=colour, linewidth=1.5, label=reading)
            axes.plot(rounds, [row["bound"] for row in mine], color=colour, linewidth=1.5, linestyle=(0, (4, 2)))
        axes.set_title(NAMES[method], fontsize=11)
        _plain(axes, "Round")
    panels[0].set_ylabel("Loss above the optimum")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(readings), frameon=False)
    figure.savefig(path)


def _figure(size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor=LIGHT.surface)
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: Any, below: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(below)
    axes.grid(True, color=LIGHT.grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
