"""`headwater list`: methods, data sets, models, partition schemes and presets by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwater.cli.options import Json
from headwater.cli.terminal import as_json, console, table
from headwater.errors import ConfigError, nearest

KINDS = ("algorithms", "datasets", "models", "partitions", "presets")
Kind = Annotated[str | None, typer.Argument(metavar="|".join(KINDS), show_default=False)]


def list_(kind: Kind = None, json: Json = False) -> None:
    """List methods, data sets, models, partition schemes or presets.

    Without a kind, all of them.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(
            f"there is nothing to list called {kind!r}{nearest(kind, KINDS)} (accepted: {', '.join(KINDS)})"
        )
    listed = {name: _rows(name) for name in KINDS if kind in (None, name)}
    if json:
        as_json(listed[kind] if kind else listed)
        return
    for name, rows in listed.items():
        headings = [key for key in rows[0] if key != "stages"]
        stages = list(rows[0].get("stages", {}))
        cells = [[row[key] for key in headings] + [row["stages"][stage] for stage in stages] for row in rows]
        console().print(table([*headings, *stages], cells, title="" if kind else name))


def _rows(kind: str) -> list[dict[str, Any]]:
    """Name and summary of each part of a kind; of a method also what its stages do."""
    from headwater import presets
    from headwater.algorithms import ALGORITHMS
    from headwater.data import DATASETS
    from headwater.models import MODELS
    from headwater.partition import PARTITIONS

    if kind == "presets":
        return [{"name": name, "summary": summary} for name, summary in presets.names().items()]
    registries: dict[str, Any] = {"datasets": DATASETS, "models": MODELS, "partitions": PARTITIONS}
    if kind in registries:
        return [{"name": name, "summary": part.summary} for name, part in registries[kind].items()]
    rows = []
    for name, part in ALGORITHMS.items():
        info = part.info
        stages = dict(zip(("local", "teachers", "consolidation"), info.stages, strict=True))
        facts = {"models a round": info.models, "needs": ", ".join(info.needs) or "nothing"}
        rows.append({"name": name, "summary": info.summary, "stages": stages | facts})
    return rows
