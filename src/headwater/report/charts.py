"""All charts as Vega-Lite specifications: the page draws them in the browser, `picture` writes them as PNG, SVG or PDF.

A specification is a plain dict, so building one imports nothing. Colours are names of CSS variables, which follow the
reader's colour scheme on the page; `picture` replaces them by those of the light theme.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.report import style
from headwater.report.grouping import MethodRuns, Series, over_seeds

Spec = dict[str, Any]
X_AXES = {
    "round": ("Round", "datum.value == floor(datum.value) ? format(datum.value, ',~f') : ''"),
    "bytes": ("Bytes between server and sectors", "format(datum.value, '~s') + 'B'"),
    "time": (
        "Simulated time",
        "datum.value < 120 ? format(datum.value, '~r') + ' s' : datum.value < 7200 ? format(datum.value / 60, '~r') + "
        "' min' : format(datum.value / 3600, '~r') + ' h'",
    ),
}
Y_AXES = {"accuracy": ("Accuracy on the test set", "~%"), "loss": ("Loss on the test set", "~r")}
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
MARKS = 12  # symbols on a curve; more would hide it
HOVERED = 600  # points that react to the pointer; of more, every second, third, … round
ROLES = {"teacher_accuracy": "teacher", "student_before": "student before", "student_after": "student after"}
CONFIG: Spec = {
    "background": None,
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif",
    "aria": False,  # the element around a chart has its description
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)", "titleColor": "var(--muted)", "gridColor": "var(--grid)", "labelFontSize": 12,
        "domainColor": "var(--line)", "tickColor": "var(--line)", "titleFontSize": 12, "titleFontWeight": "normal",
        "labelLimit": 140,
    },
    "legend": {"labelColor": "var(--ink)", "titleColor": "var(--muted)", "labelFontSize": 12, "labelLimit": 300},
    "title": {"color": "var(--ink)", "subtitleColor": "var(--muted)", "fontSize": 13, "anchor": "start"},
    "text": {"color": "var(--ink)", "fontSize": 12},
}  # fmt: skip


def points(groups: Sequence[MethodRuns]) -> list[Spec]:
    """Rows of the curves: mean, lowest and highest seed by method and round, with bytes and seconds so far."""
    rows = []
    for slot, group in enumerate(groups):
        losses = {point.round: point for point in over_seeds(group.runs, "loss", costs=False)}
        series = Series(group.label, slot, over_seeds(group.runs))
        every = max(1, -(-len(series.points) // MARKS))
        for tail, part in ((0, series.full), (1, series.tail)):
            for at, point in enumerate(part):
                loss = losses.get(point.round)
                rows.append(
                    {"name": group.label, "tail": tail, "seeds": point.seeds, "round": point.round}
                    | {"bytes": point.bytes, "near": point.near, "seconds": round(point.seconds, 4)}
                    | {"far_trips": point.far_trips, "near_trips": point.near_trips}
                    | {"accuracy": point.value, "accuracy_low": point.low, "accuracy_high": point.high}
                    | ({"loss": loss.value, "loss_low": loss.low, "loss_high": loss.high} if loss else {})
                    | {"mark": at % every == 0 or point is series.points[-1], "last": point is series.points[-1]}
                )
    return rows


def curves(names: Sequence[str], x: str, y: str, rounds: int, *, legend: bool = False) -> Spec:
    """Accuracy or loss by round, bytes or time, over the data source "points".

    Args:
        names: of the methods, in the order of their colours.
        x: a key of `X_AXES`.
        y: a key of `Y_AXES`.
        rounds: number of rounds, for thinning what reacts to the pointer.
        legend: whether the chart has its own legend; the page has one for all charts.
    """
    title, label = X_AXES[x]
    up, form = Y_AXES[y]
    look = appearance(names, legend=legend)
    across: Spec = {"field": x, "type": "quantitative", "title": title, "scale": {"zero": False, "nice": x != "round"}}
    across["axis"] = {
        "labelExpr": label,
        "grid": False,
        **({"tickMinStep": 1} if x == "round" else {}),
        "labelFlush": x == "round",
    }
    across["axis"] |= {"tickCount": 8 if x == "round" else 5, "labelSeparation": 8}
    height: Spec = {"field": y, "type": "quantitative", "title": up if legend else None, "scale": {"zero": False}}
    height["axis"] = {"format": form, "tickCount": 6}
    pale = {"condition": {"test": "datum.tail", "value": 0.45}, "value": 1}
    every = -(-len(names) * rounds // HOVERED) or 1
    over = {"param": "hover", "empty": False}
    layers: list[Spec] = [
        {
            "mark": {"type": "area", "opacity": 0.1},
            "encoding": {"y": height | {"field": f"{y}_low"}, "y2": {"field": f"{y}_high"}},
        },
        {"mark": {"type": "line", "strokeWidth": 2.2}, "encoding": {"y": height, "opacity": pale, **look["dash"]}},
        {
            "transform": [{"filter": "datum.mark"}],
            "mark": {"type": "point", "filled": True, "size": 42, "opacity": 1},
            "encoding": {"y": height, **look["shape"]},
        },
        {
            "transform": [{"filter": f"datum.last || datum.round % {every} == 0"}],
            "params": [{
                "name": "hover",
                "select": {"type": "point", "nearest": True, "on": "pointermove", "clear": "pointerout",
                           "fields": ["round"]},
            }],
            "mark": {"type": "point", "filled": True, "size": 90, "stroke": "var(--ink)", "strokeWidth": 1.5},
            "encoding": {
                "y": height,
                "opacity": {"condition": over | {"value": 1}, "value": 0},
                "tooltip": [{"field": "round", "type": "quantitative"}, {"field": "name", "type": "nominal"}],
            },
        },
    ]  # fmt: skip
    if x != "round":  # a method that sends nothing is a horizontal line at its last value
        still = [{"filter": "datum.last && datum.bytes == 0"}]
        layers.append({"transform": still, "mark": {"type": "rule", "strokeWidth": 1.6}, "encoding": {"y": height}})
        layers[-1]["encoding"]["x"] = None
    kept = f"indexof(shown, datum.name) >= 0 && isValid(datum.{y}) && datum.round >= from && datum.round <= to"
    moved = "" if x == "round" else " && (datum.bytes > 0 || datum.last)"
    return {
        "data": {"name": "points"},
        "params": [
            {"name": "shown", "value": list(names)},
            {"name": "from", "value": 0},
            {"name": "to", "value": 1e12},
        ],
        "transform": [{"filter": kept + moved}],
        "width": "container",
        "height": 320,
        "encoding": {"x": across, **look["color"], "detail": {"field": "tail"}},
        "layer": layers,
    }


def appearance(names: Sequence[str], *, legend: bool = False, most: int = 24) -> dict[str, Spec]:
    """Colour, dash and shape encodings of methods by their field "name"."""
    spots = [style.look(at) for at in range(len(names))]
    ranges = {
        "color": [f"var(--c{colour})" for colour, _ in spots],
        "strokeDash": [list(dash) or [1, 0] for _, dash in spots],
        "shape": [SHAPES[at % len(SHAPES)] for at in range(len(names))],
    }
    own = {"orient": "top", "columns": 4, "title": None, "symbolOpacity": 1, "symbolSize": 80} if legend else None
    return {
        short: {
            channel: {"field": "name", "type": "nominal", "legend": own}
            | {"scale": {"domain": list(names), "range": ranges[channel]}}
        }
        for short, channel in (("color", "color"), ("dash", "strokeDash"), ("shape", "shape"))
    }


def lines(
    rows: list[Spec],
    names: Sequence[str],
    *,
    up: str = "Accuracy on the validation set",
    form: str = "~%",
    log: bool = False,
    height: int = 220,
    legend: bool = True,
) -> Spec:
    """Curves by round with a band and marks; rows have `name`, `round`, `value` and, where known, `low` and `high`.

    Args:
        rows: the points.
        names: of the curves, in the order of their colours.
        up: title of the vertical axis.
        form: number format of the vertical axis.
        log: whether that axis is logarithmic.
        height: in pixels.
        legend: whether the chart has a legend.
    """
    look = appearance(names, legend=legend)
    scale = {"type": "log" if log else "linear", "zero": False}
    y = {"type": "quantitative", "title": up, "axis": {"format": form, "tickCount": 6}, "scale": scale}
    rounds = sorted({int(row["round"]) for row in rows})
    whole: Spec = {"tickMinStep": 1, "grid": False, "format": "d"} | ({"values": rounds} if len(rounds) <= 12 else {})
    across = {
        "field": "round",
        "type": "quantitative",
        "title": "Round",
        "axis": whole,
        "scale": {"zero": False, "nice": False},
    }
    seen = [{"field": "name", "title": "Curve"}, {"field": "round", "title": "Round"}]
    every = max(1, -(-len(rounds) // MARKS))
    return {
        "data": {"values": rows},
        "width": "container",
        "height": height,
        "encoding": {"x": across} | look["color"],
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.12},
                "encoding": {"y": y | {"field": "low"}, "y2": {"field": "high"}},
            },
            {"mark": {"type": "line", "strokeWidth": 2.2}, "encoding": {"y": y | {"field": "value"}, **look["dash"]}},
            {
                "transform": [{"filter": f"datum.round % {every} == 0"}],
                "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
                "encoding": {"y": y | {"field": "value"}, **look["shape"]}
                | {"tooltip": [*seen, {"field": "value", "title": up, "format": ".1%" if form == "~%" else ".4~g"}]},
            },
        ],
    }  # fmt: skip


def words(text: str) -> Spec:
    """A chart that only says why there is nothing to draw."""
    return {"data": {"values": [{}]}, "mark": {"type": "text", "text": text}, "width": 480, "height": 120}


def picture(spec: Spec, path: Path) -> Path:
    """Write a chart as a file; its ending decides between PNG, SVG and PDF."""
    kind = path.suffix.lower().removeprefix(".")
    converter, plain = _converter(), _plain(spec | {"background": style.LIGHT.surface, "padding": 12})
    if kind == "svg":
        path.write_text(converter.vegalite_to_svg(plain), encoding="utf-8")
    elif kind == "pdf":
        path.write_bytes(converter.vegalite_to_pdf(plain))
    else:
        path.write_bytes(converter.vegalite_to_png(plain, scale=1.5))
    return path


def _plain(spec: Spec) -> Spec:
    """With the colours of the light theme, widths in pixels and fonts that are always there."""
    named = style.named(style.LIGHT)
    whole = {"config": CONFIG | {"font": "sans-serif"}, **spec}
    text = re.sub(r"var\(--([a-z0-9-]+)\)", lambda found: named[found[1]], json.dumps(whole))
    plain: Spec = json.loads(text.replace('"width": "container"', '"width": 480'))
    return plain


def _converter() -> Any:
    import vl_convert  # slow to start; only files need it

    return vl_convert
