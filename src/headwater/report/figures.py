"""Curves and splits as files: PNG, SVG or PDF, as the ending of the path says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.report import charts
from headwater.report.client_data import caller, class_names, client_sectors
from headwater.report.grouping import MethodRuns, as_groups
from headwater.report.runs import RunRecord

if TYPE_CHECKING:
    from headwater.partition.base import Ints
    from headwater.partition.partition import Partition
    from headwater.partition.summary import LabelDistance

LOG = 20  # the axis of bytes is logarithmic if methods differ by more than this factor
MOST_DRAWN = 200  # clients of a large population
LONGEST = 20  # letters of a name


def curves(runs: Sequence[RunRecord] | Sequence[MethodRuns], path: Path) -> Path:
    """Draw accuracy by round and by bytes: the mean over seeds, and a band from the lowest to the highest seed.

    Args:
        runs: runs, which are grouped by method, or groups.
        path: the file; also returned.
    """
    groups = as_groups(runs)
    rows = charts.points(groups)
    names = [each.label for each in groups if any(row["name"] == each.label for row in rows)]
    if not rows:
        return charts.picture(charts.words("no accuracy measured yet"), path)
    sent = [row["bytes"] for row in rows if row["last"] and row["bytes"] > 0]
    panels = []
    for x in ("round", "bytes"):
        spec = charts.curves(names, x, "accuracy", 0, legend=True)
        spec |= {"data": {"values": rows}, "width": 440, "height": 300}
        if x == "bytes":
            spec["encoding"]["x"]["scale"]["type"] = "log" if sent and max(sent) > LOG * min(sent) else "linear"
        params = spec.pop("params")
        spec["layer"] = [layer for layer in spec["layer"] if "params" not in layer]  # nothing to point at
        panels.append(spec)
    return charts.picture({"params": params, "hconcat": panels}, path)


def split(run: RunRecord, path: Path) -> Path | None:
    """Draw samples by client and class; None if the run has no counts."""
    import numpy as np

    manifest = run.partition or {}
    counts, rule = manifest.get("counts"), manifest.get("rule")
    if not isinstance(counts, list) or not counts or not np.sum(counts):
        return None
    registered = rule.get("clients") if isinstance(rule, dict) else None
    table = np.asarray(counts[:MOST_DRAWN] if registered else counts, dtype=np.int64)
    known, called = client_sectors(run.partition), caller(run.partition)
    sectors = [known.get(client, 0) for client in range(len(table))]
    names = [called("client", client).removeprefix("client ") for client in range(len(table))]
    titles = {sector: called("sector", sector) for sector in sectors}
    return _dots(table, sectors, names, titles, class_names(manifest.get("classes"), table.shape[1]), path, registered)


def partition(found: Partition, labels: Ints, classes: int, path: Path, names: Sequence[str] | None = None) -> Path:
    """Draw one panel per sector: clients down, classes across, and a dot whose area is the number of samples.

    Args:
        found: the partition; of a lazy one, the first clients are drawn.
        labels: of the training set.
        classes: how many there are.
        path: the file; also returned.
        names: of the classes; numbers if None.
    """
    most = found.clients if found.rule is None else min(found.clients, MOST_DRAWN)
    counts = found.counts(labels, classes, found.shown)[:most]
    sectors = list(found.sectors[:most])
    called = [found.client_name(client) for client in range(most)]
    titles = {sector: f"sector {found.sector_name(sector)}" for sector in sectors}
    registered = found.clients if found.clients > most else None
    return _dots(counts, sectors, called, titles, class_names(list(names or ()), classes), path, registered)


def _dots(
    counts: Ints,
    sectors: Sequence[int],
    names: Sequence[str],
    titles: dict[int, str],
    classes: Sequence[str],
    path: Path,
    registered: int | None,
) -> Path:
    from headwater.partition.summary import distances

    clients, places = distances(counts, sectors)
    largest = max(1, int(counts.max()))
    across = 22 if len(classes) <= 30 else max(4, 660 // len(classes))
    down = 22 if len(names) <= 40 else 15
    legend: charts.Spec = {
        "title": "samples",
        "orient": "top",
        "direction": "horizontal",
        "symbolFillColor": "var(--dots)",
    }
    legend |= {"values": sorted({max(1, round(largest * share)) for share in (0.1, 0.4, 1.0)}), "symbolStrokeWidth": 0}
    area = {"domain": [0, largest], "range": [0, (0.95 * max(min(across, down), 9)) ** 2 * 0.785]}
    panels = []
    for place in places:
        members = sorted(
            (row for row in clients if row.sector == place.number), key=lambda row: (-row.size, row.number)
        )
        rows = [
            {"at": at, "class": label, "samples": int(value)}
            for at, row in enumerate(members)
            for label, value in enumerate(counts[row.number])
            if value
        ]
        panels.append(
            _panel(rows, members, [_cut(names[row.number]) for row in members], classes, area, legend)
            | {"width": across * len(classes), "height": down * len(members)}
            | {"title": {"text": _cut(titles[place.number], 40), "subtitle": _far(place)}}
        )
    whole = "Clients" if registered is None else f"First {len(names)} of {registered:,} clients"
    mean = {tier: _mean(rows) for tier, rows in (("clients", clients), ("sectors", places))}
    empty = sum(row.size == 0 for row in clients)
    under = f"mean TV: clients {mean['clients']:.2f}, sectors {mean['sectors']:.2f}" + (
        f"; {empty} empty" if empty else ""
    )
    heading: charts.Spec = {"text": f"{whole} (down) and classes (across)"}
    heading["subtitle"] = [under, "TV: distance of label shares from the whole, 0 to 1"]
    high = sum(panel["height"] + 90 for panel in panels)
    columns = max(1, round((1.5 * high / (panels[0]["width"] + 130)) ** 0.5))
    return charts.picture({"title": heading, "concat": panels, "columns": columns}, path)


def _panel(
    rows: list[charts.Spec],
    members: Sequence[LabelDistance],
    names: Sequence[str],
    classes: Sequence[str],
    area: charts.Spec,
    legend: charts.Spec,
) -> charts.Spec:
    every = max(1, len(classes) // 30)
    upright = max(map(len, classes)) <= 3
    axis: charts.Spec = {"ticks": False, "domain": False, "grid": True, "title": None}
    x: charts.Spec = {"field": "class", "type": "ordinal", "scale": {"domain": [*range(len(classes))]}}
    x["axis"] = axis | {"labelAngle": 0 if upright else -90, "labelExpr": f"{_texts(classes)}[datum.value]"}
    x["axis"] |= {"values": [*range(0, len(classes), every)]}
    y: charts.Spec = {"field": "at", "type": "ordinal", "scale": {"domain": [*range(len(members))]}}
    y["axis"] = axis | {"labelExpr": f"{_texts(names)}[datum.value]", "labelOverlap": False}
    totals = [{"at": at, "total": f"{row.size:,}" if row.size else "empty"} for at, row in enumerate(members)]
    return {
        "encoding": {"y": y},
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "circle", "color": "var(--dots)", "opacity": 1},
                "encoding": {"x": x}
                | {"size": {"field": "samples", "type": "quantitative", "scale": area, "legend": legend}},
            },
            {
                "data": {"values": totals},
                "mark": {"type": "text", "align": "left", "color": "var(--muted)", "fontSize": 10, "dx": 6},
                "encoding": {"x": {"value": "width"}, "text": {"field": "total"}},
            },
        ],
    }  # fmt: skip


def _far(sector: LabelDistance) -> str:
    return (
        "no samples" if sector.total_variation is None else f"{sector.size:,} samples, TV {sector.total_variation:.2f}"
    )


def _mean(rows: Sequence[LabelDistance]) -> float:
    full = [row for row in rows if row.total_variation is not None]
    return sum(row.size * (row.total_variation or 0.0) for row in full) / max(1, sum(row.size for row in full))


def _texts(names: Sequence[Any]) -> str:
    return json.dumps([str(name)[:LONGEST] for name in names])


def _cut(name: str, most: int = LONGEST) -> str:
    """A long name shortened to its beginning and its end."""
    end = most // 3
    return name if len(name) <= most else f"{name[: most - 1 - end]}…{name[-end:]}"
