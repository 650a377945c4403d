"""Charts of a sweep: a dot per value for one key, a heat map for two, parallel coordinates for more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.report.charts import Spec
from headwater.report.grouping import MethodRuns, differing, flat
from headwater.report.method_table import MethodTable
from headwater.report.method_text import accuracy_text
from headwater.report.numbers import percent
from headwater.report.page_sections import Figure

STAR = "M0,-1L.3,-.3L1,-.3L.45,.15L.65,.9L0,.45L-.65,.9L-.45,.15L-1,-.3L-.3,-.3Z"


def keys_of(groups: Sequence[MethodRuns]) -> list[str]:
    """The keys of a sweep: those in which runs of the same method differ, after the method if there are several."""
    methods: dict[str, list[MethodRuns]] = {}
    for each in groups:
        methods.setdefault(each.runs[0].algorithm, []).append(each)
    varied = dict.fromkeys(key for alike in methods.values() for key in differing([each.runs for each in alike]))
    return [*(["algorithm.name"] if len(methods) > 1 else []), *varied] if varied else []


def figures(groups: Sequence[MethodRuns], table: MethodTable, keys: Sequence[str]) -> list[Figure]:
    """The figure of accuracy by the keys of a sweep; none if nothing was measured."""
    rows: list[Spec] = []
    for each, row in zip(groups, table.rows, strict=True):
        if row.accuracy is not None:
            settings = flat(each.runs[0].config)
            values = {f"k{at}": _shown(settings.get(key)) for at, key in enumerate(keys)}
            rows.append(
                values
                | {"accuracy": row.accuracy, "low": row.accuracy_low or row.accuracy, "text": accuracy_text(row)}
                | {"high": row.accuracy_high or row.accuracy, "best": row.best, "name": each.label, "seeds": row.seeds}
            )
    if not rows or not keys:
        return []
    orders = [_order([row[f"k{at}"] for row in rows]) for at in range(len(keys))]
    top = [f"{row['name']} {percent(row['accuracy'])}" for row in rows if row["best"]]
    words = f"Best: {'; '.join(top)}." if top else f"Accuracy from {percent(min(row['accuracy'] for row in rows))}."
    sign = "A thick orange line" if len(keys) > 2 else "★"
    note = f"{sign} marks the best among runs with the same data and split."
    draw = _dots if len(keys) == 1 else _heat if len(keys) == 2 else _parallel
    return [
        Figure(
            "sweep",
            f"Accuracy by {', '.join(keys[:-1])}{' and ' * (len(keys) > 1)}{keys[-1]}",
            words,
            draw(rows, keys, orders),
            note,
            "span",
        )
    ]


def _dots(rows: list[Spec], keys: Sequence[str], orders: list[list[str]]) -> Spec:
    up = {"type": "quantitative", "title": "Accuracy", "scale": {"zero": False}, "axis": {"format": "~%"}}
    return {
        "data": {"values": rows},
        "width": "container",
        "height": 260,
        "encoding": {
            "x": {"field": "k0", "type": "ordinal", "sort": orders[0], "title": keys[0], "axis": {"labelAngle": 0}}
        },
        "layer": [
            {
                "mark": {"type": "rule", "color": "var(--c0)"},
                "encoding": {"y": up | {"field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {"y": up | {"field": "accuracy"}, **_star(), "tooltip": _tip(keys)},
            },
        ],
    }


def _heat(rows: list[Spec], keys: Sequence[str], orders: list[list[str]]) -> Spec:
    least, most = (pick(row["accuracy"] for row in rows) for pick in (min, max))
    for row in rows:
        row["depth"] = 0.08 + 0.92 * (row["accuracy"] - least) / ((most - least) or 1)
        row["cell"] = f"{'★ ' if row['best'] else ''}{100 * row['accuracy']:.1f}"
    places = [
        {"field": f"k{at}", "type": "ordinal", "sort": order, "title": keys[at], "axis": {"labelAngle": 0}}
        for at, order in enumerate(orders)
    ]
    dark = {"test": "datum.depth > 0.55", "value": "var(--on-dots)"}
    return {
        "data": {"values": rows},
        "width": "container",
        "height": 44 * len(orders[0]),
        "encoding": {"x": places[1], "y": places[0]},
        "layer": [
            {
                "mark": {"type": "rect", "color": "var(--dots)", "cornerRadius": 3},
                "encoding": {"opacity": {"field": "depth", "type": "quantitative", "scale": None}}
                | {"tooltip": _tip(keys)},
            },
            {
                "mark": {"type": "text", "fontSize": 13},
                "encoding": {"text": {"field": "cell"}, "color": {"condition": dark, "value": "var(--ink)"}},
            },
        ],
    }


def _parallel(rows: list[Spec], keys: Sequence[str], orders: list[list[str]]) -> Spec:
    """A line per setting through its values; the last axis is the accuracy."""
    least, most = (pick(row["accuracy"] for row in rows) for pick in (min, max))
    lasts = [key.rpartition(".")[2] for key in keys]
    names = [last if lasts.count(last) == 1 else key for last, key in zip(lasts, keys, strict=True)] + ["accuracy"]
    lines, labels = [], []
    for at, row in enumerate(rows):
        rank = (row["accuracy"] - least) / ((most - least) or 1)
        for place, key in enumerate(names):
            order = orders[place] if place < len(keys) else []
            height = order.index(row[f"k{place}"]) / max(len(order) - 1, 1) if order else rank
            lines.append(
                {"line": at, "axis": key, "height": height, "depth": 0.15 + 0.85 * rank, "best": row["best"]}
                | {"name": row["name"], "text": row["text"]}
            )
    for key, order in zip(names, [*orders, []], strict=True):
        marks = [(value, at / max(len(order) - 1, 1)) for at, value in enumerate(order)]
        marks = marks or [(percent(least), 0.0), (percent(most), 1.0)]
        labels += [{"axis": key, "height": height, "label": value} for value, height in marks]
    across: Spec = {"field": "axis", "type": "nominal", "sort": names, "title": None}
    across |= {"scale": {"padding": 0.3}, "axis": {"grid": True, "labelAngle": 0, "labelLimit": 110, "domain": False}}
    up = {"field": "height", "type": "quantitative", "axis": None, "scale": {"domain": [-0.03, 1.03]}}
    tip = [{"field": "name", "title": "Setting"}, {"field": "text", "title": "Accuracy"}]
    lit = {"condition": {"test": "datum.best", "value": "var(--c1)"}, "value": "var(--c0)"}
    return {
        "width": "container",
        "height": 320,
        "encoding": {"x": across, "y": up},
        "layer": [
            {
                "data": {"values": lines},
                "mark": {"type": "line", "point": {"size": 24}},
                "encoding": {"detail": {"field": "line"}, "color": lit, "tooltip": tip}
                | {"strokeWidth": {"condition": {"test": "datum.best", "value": 3.5}, "value": 1.6}}
                | {"opacity": {"field": "depth", "type": "quantitative", "scale": None}},
            },
            *(
                {
                    "data": {"values": labels},
                    "mark": {"type": "text", "align": "left", "dx": 7, "dy": -7, **edge},
                    "encoding": {"text": {"field": "label"}},
                }
                for edge in ({"stroke": "var(--surface)", "strokeWidth": 4}, {})  # readable over lines
            ),
        ],
    }


def _star() -> Spec:
    best = {"test": "datum.best"}
    return {
        "shape": {"condition": best | {"value": STAR}, "value": "circle"},
        "color": {"condition": best | {"value": "var(--c1)"}, "value": "var(--c0)"},
    }


def _tip(keys: Sequence[str]) -> list[Spec]:
    named = [{"field": f"k{at}", "title": key} for at, key in enumerate(keys)]
    return [*named, {"field": "text", "title": "Accuracy"}, {"field": "seeds", "title": "Seeds"}]


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _order(values: Sequence[str]) -> list[str]:
    """Values in the order of their numbers; words in the order of their first use."""
    found = list(dict.fromkeys(values))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found
