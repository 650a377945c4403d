"""Who led each sector in each round, and how distillation changed its model: a chart per method with leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.report import charts
from headwater.report.client_data import caller
from headwater.report.grouping import MethodRuns
from headwater.report.numbers import mean, number
from headwater.report.runs import RunRecord, natural

MOST = 200  # rounds in the chart; of a longer run, the last ones
NAMED = 30  # up to so many rounds, the cells name their leaders
LONGEST = 10  # letters of a name in a cell
FULL = 10.0  # points at which a cell has its full colour, if no distillation changed more
SHARES = {"teacher_accuracy": "Teachers together", "student_before": "Student before", "student_after": "Student after"}


def lessons(run: RunRecord) -> list[dict[str, Any]]:
    """One row per round and sector that had a leader, with what was recorded of its distillation.

    `leader` and `sector` are names for people. `gain` is in points on the validation set, None without one. Other
    numbers of a place keep their own keys, so that what a later version records is shown, too.
    """
    called = caller(run.partition)
    found = []
    for row in run.rows:
        leaders, places = row.get("leaders"), row.get("distill")
        for node, client in leaders.items() if isinstance(leaders, dict) else ():
            report = places.get(node) if isinstance(places, dict) else None
            known = {
                k: v
                for k, raw in (report if isinstance(report, dict) else {}).items()
                if (v := number(raw)) is not None
            }
            before, after = known.get("student_before"), known.get("student_after")
            gain = None if before is None or after is None else 100 * (after - before)
            found.append(
                {"round": int(row["round"]), "sector": _named(called, "sector", str(node))}
                | {"leader": _named(called, "client", str(client)), "gain": gain, **known}
            )
    return found


def of_round(run: RunRecord) -> dict[str, str]:
    """Node of a sector → name of its leader, in the last round that has leaders."""
    called = caller(run.partition)
    last: dict[str, Any] = next(
        (row["leaders"] for row in reversed(run.rows) if isinstance(row.get("leaders"), dict)), {}
    )
    return {str(node): _named(called, "client", str(client)) for node, client in last.items()}


def figures(groups: Sequence[MethodRuns]) -> list[tuple[str, str, charts.Spec]]:
    """Title, description and chart of the first counted run of each method with leaders."""
    found = []
    for each in groups:
        run = each.counted[0]
        rows = lessons(run)
        if not rows:
            continue
        last = max(row["round"] for row in rows)
        shown = [row for row in rows if row["round"] > last - MOST]
        seed = f" Seed {run.seed}." if len(each.runs) > 1 else ""
        some = f" The last {MOST} rounds." if len(shown) < len(rows) else ""
        found.append(
            (f"{each.label}: leaders, and what distillation changed", _words(rows) + seed + some, _chart(shown))
        )
    return found


def _named(called: Any, kind: str, node: str) -> str:
    digits = node[1:]
    return str(called(kind, int(digits))) if digits.isdecimal() else node


def _words(rows: Sequence[dict[str, Any]]) -> str:
    gains: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["gain"] is not None:
            gains.setdefault((row["leader"], row["sector"]), []).append(row["gain"])
    led = len({(row["leader"], row["sector"]) for row in rows})
    text = f"{led} client{'s' * (led != 1)} led."
    if not gains:
        return f"{text} Without a validation set, the effect of their distillation was not measured."
    ranked = sorted(gains, key=lambda key: -(mean(gains[key]) or 0.0))
    parts = [
        f"{name} ({sector}) {mean(gains[name, sector]):+.1f}" for name, sector in dict.fromkeys((ranked[0], ranked[-1]))
    ]
    named = f"most {parts[0]}, least {parts[1]}" if len(parts) > 1 else parts[0]
    better = sum(value > 0.05 for values in gains.values() for value in values)
    worse = sum(value < -0.05 for values in gains.values() for value in values)
    of = sum(map(len, gains.values()))
    return (
        f"{text} {better} of {of} distillations raised the student's accuracy on the validation set and {worse} "
        f"lowered it. Mean points gained while leading: {named}."
    )


def _chart(rows: Sequence[dict[str, Any]]) -> charts.Spec:
    most = max([FULL, *(abs(row["gain"]) for row in rows if row["gain"] is not None)])
    cells = []
    for row in rows:
        gain = row["gain"]
        cell: dict[str, Any] = {"round": row["round"], "sector": row["sector"], "leader": row["leader"]}
        cell |= {
            "short": row["leader"].removeprefix("client ")[:LONGEST],
            "up": gain is None or gain >= 0,
            # Never so dark that text on it could not be read.
            "depth": 0.06 if gain is None else 0.06 + 0.5 * (abs(gain) / most) ** 0.7,
            "tip": _tip(row),
        }
        cells.append(cell)
    rounds = len({row["round"] for row in rows})
    sectors = sorted({row["sector"] for row in rows}, key=natural)
    tip = [{"field": key, "title": key.capitalize()} for key in ("round", "sector", "leader")]
    x: charts.Spec = {"field": "round", "type": "ordinal", "title": "Round"}
    x |= {"axis": {"labelAngle": 0, "labelOverlap": True, "grid": False, "ticks": False, "domain": False}}
    y: charts.Spec = {"field": "sector", "type": "nominal", "title": None, "sort": sectors}
    y |= {"axis": {"grid": False, "ticks": False, "domain": False, "labelLimit": 110}}
    squares: charts.Spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "color": {"condition": {"test": "datum.up", "value": "var(--dots)"}, "value": "var(--wrong)"},
            "opacity": {"field": "depth", "type": "quantitative", "scale": None},
            "tooltip": [*tip, {"field": "tip", "title": "Distillation"}],
        },
    }
    words: charts.Spec = {
        "mark": {"type": "text", "fontSize": 12, "tooltip": None},
        "encoding": {"text": {"field": "short"}},
    }
    return {
        "data": {"values": cells},
        "width": "container",
        "height": (26 if len(sectors) <= 20 else 12) * len(sectors),
        "encoding": {"x": x, "y": y},
        "layer": [squares, words] if rounds <= NAMED and len(sectors) <= 20 else [squares],
    }


def _tip(row: dict[str, Any]) -> str:
    """What was recorded of one distillation, in words."""
    parts = [] if row["gain"] is None else [f"{row['gain']:+.1f} points"]
    for key, value in row.items():
        if key in SHARES:
            parts.append(f"{SHARES[key].lower()} {100 * value:.1f} %")
        elif key not in ("round", "sector", "leader", "gain"):
            share = key.endswith("accuracy") and 0 <= value <= 1
            parts.append(f"{key.replace('_', ' ')} " + (f"{100 * value:.1f} %" if share else f"{value:g}"))
    return ", ".join(parts) or "not measured"
