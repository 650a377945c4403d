"""Charts of one method or run: accuracy by client, confusion matrix, timeline. Vega-Lite, as in `charts`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headwater.report import charts, style
from headwater.report.timeline import PHASES, Span, extents


def spread(rows: list[charts.Spec], names: Sequence[str]) -> charts.Spec:
    """Accuracy by client, all methods on one axis; rows have `name`, `client`, `sector`, `accuracy` and `lift`."""
    look = charts.appearance(names)
    short = dict(zip(names, without_common(names), strict=True))
    wide = {"expr": "containerSize()[0] > 800 ? 260 : 110"}
    lane: charts.Spec = {"field": "name", "type": "nominal", "sort": list(names), "title": None}
    lane |= {"axis": {"labelLimit": wide, "labelExpr": f"{json.dumps(short)}[datum.value]"}}
    across: charts.Spec = {
        "field": "accuracy",
        "type": "quantitative",
        "title": "Accuracy on the client's own mix of labels",
    }
    across |= {
        "scale": {"zero": False},
        "axis": {"format": "~%", "tickCount": 8, "labelFlush": False, "labelSeparation": 8},
    }
    tip = [{"field": key, "title": key.capitalize()} for key in ("client", "sector")]
    return {
        "data": {"values": rows},
        "params": [{"name": "shown", "value": list(names)}],
        "transform": [{"filter": "indexof(shown, datum.name) >= 0"}],
        "width": "container",
        "height": 30 + 46 * len(names),
        "encoding": {"y": lane},
        "layer": [
            {
                "mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.6},
                "encoding": {"x": across}
                | {"yOffset": {"field": "lift", "type": "quantitative", "scale": {"domain": [0, 1]}}}
                | look["color"] | look["shape"]
                | {"tooltip": [*tip, {"field": "accuracy", "title": "Accuracy", "format": ".1%"}]},
            },
            {
                "mark": {"type": "tick", "thickness": 3, "size": 36, "color": "var(--ink)"},
                "encoding": {"x": across | {"aggregate": "mean"}},
            },
        ],
    }  # fmt: skip


def without_common(names: Sequence[str]) -> list[str]:
    """Names of settings of one method without the method's name, so that they differ where they begin.

    >>> without_common(["fedavg (lr 0.1)", "fedavg (lr 0.2)"]), without_common(["fedavg", "fedhead"])
    (['lr 0.1', 'lr 0.2'], ['fedavg', 'fedhead'])
    """
    parts = [name.partition(" (") for name in names]
    alike = len(names) > 1 and len({first for first, _, _ in parts}) == 1 and all(rest for _, _, rest in parts)
    return [rest.removesuffix(")") for _, _, rest in parts] if alike else list(names)


def confusion(total: Sequence[Sequence[float]], names: Sequence[str], side: int = 220) -> charts.Spec:
    """A confusion matrix of fixed size: rows are true classes, columns predictions, shade is the share of the row."""
    rows: list[charts.Spec] = []
    for r, line in enumerate(total):
        for c, value in enumerate(line):
            if value > 0:
                share = value / sum(line)
                depth, strong = style.shade(share)
                rows.append({"r": r, "c": c, "true": names[r], "predicted": names[c], "right": r == c, "count": value})
                rows[-1] |= {"share": share, "depth": depth, "strong": strong}
    few = len(names) <= 12
    label = f"{json.dumps([name[:12] for name in names])}[datum.value]"
    axis: charts.Spec = {"labelExpr": label, "labelAngle": 0 if max(map(len, names)) <= 2 else -45, "ticks": False}
    axis |= {"domain": False, "labelOverlap": True, "grid": False}
    places = {"type": "ordinal", "scale": {"domain": [*range(len(names))], "paddingInner": 0.04 if few else 0}}
    cell = {
        "mark": {"type": "rect"},
        "encoding": {
            "color": {"condition": {"test": "datum.right", "value": "var(--dots)"}, "value": "var(--wrong)"},
            "opacity": {"field": "depth", "type": "quantitative", "scale": None},
            "tooltip": [
                {"field": "true", "title": "True class"},
                {"field": "predicted", "title": "Predicted"},
                {"field": "count", "title": "Samples"},
                {"field": "share", "title": "Of this class", "format": ".1%"},
            ],
        },
    }
    words = {
        "transform": [{"filter": "datum.share >= 0.005"}],
        "mark": {"type": "text", "fontSize": 12, "tooltip": None},
        "encoding": {
            "text": {"field": "percent", "type": "quantitative", "format": ".0f"},
            "color": {"condition": {"test": "datum.strong", "value": "var(--on-dots)"}, "value": "var(--ink)"},
        },
    }
    return {
        "data": {"values": [row | {"percent": 100 * row["share"]} for row in rows]},
        "width": side,
        "height": side,
        "encoding": {
            "x": {"field": "c", "title": "Predicted class", "axis": axis | {"orient": "bottom"}} | places,
            "y": {"field": "r", "title": "True class", "axis": axis | {"labelAngle": 0, "labelPadding": 6}} | places,
        },
        "layer": [cell, words] if few else [cell],
    }


def lanes(spans: Sequence[Span]) -> charts.Spec:
    """The timeline: a bar per task in the lane of its worker, and above them the extent of each round."""
    begin = min((span.start for span in spans), default=0.0)
    rows = [
        {"lane": f"worker {span.worker}", "start": span.start - begin, "end": span.end - begin, "what": span.text}
        | {"kind": PHASES[span.phase], "even": span.round % 2 == 0}
        for span in spans
    ]
    for at, (start, end) in extents(spans).items():
        rows.append({"lane": f"rounds {'odd' if at % 2 else 'even'}", "start": start - begin, "end": end - begin})
        rows[-1] |= {"kind": "round", "what": f"round {at}: {end - start:.2f} s", "even": False}
    workers = [f"worker {worker}" for worker in sorted({span.worker for span in spans})]
    kinds = [words for words in (*PHASES.values(), "round") if any(row["kind"] == words for row in rows)]
    colours = {words: f"var(--c{at})" for at, words in enumerate(PHASES.values())} | {"round": "var(--muted)"}
    return {
        "data": {"values": rows},
        "width": "container",
        "height": 26 * (len(workers) + 2),
        "mark": {"type": "bar", "stroke": "var(--surface)", "strokeWidth": 0.5},
        "encoding": {
            "x": {"field": "start", "type": "quantitative", "title": "Seconds since the first task shown"},
            "x2": {"field": "end"},
            "y": {"field": "lane", "type": "nominal", "title": None, "sort": ["rounds odd", "rounds even", *workers]},
            "color": {"field": "kind", "type": "nominal"}
            | {"scale": {"domain": kinds, "range": [colours[words] for words in kinds]}}
            | {"legend": {"orient": "top", "title": None, "columns": 3}},
            "opacity": {"condition": {"test": "datum.even", "value": 0.45}, "value": 1},
            "tooltip": {"field": "what"},
        },
    }
