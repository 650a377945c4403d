"""`headwater list`: methods, data sets, models, partition schemes and presets by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwater.cli.options import Json
from headwater.cli.terminal import as_json, console, table
from headwater.errors import ConfigError, nearest
from headwater.registry import Registry

Kind = Annotated[
    str | None, typer.Argument(metavar="algorithms|datasets|models|partitions|presets", show_default=False)
]


def list_(kind: Kind = None, json: Json = False) -> None:
    """List methods, data sets, models, partition schemes or presets.

    Without a kind, all of them.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(
            f"there is nothing to list called {kind!r}{nearest(kind, KINDS)} (accepted: {', '.join(KINDS)})"
        )
    found = {name: rows() for name, rows in KINDS.items() if kind in (None, name)}
    if json:
        as_json(found[kind] if kind else found)
        return
    for name, rows in found.items():
        headings = [key for key in rows[0] if key != "stages"]
        stages = list(rows[0].get("stages", {}))
        cells = [[row[key] for key in headings] + [row["stages"][stage] for stage in stages] for row in rows]
        console().print(table([*headings, *stages], cells, title="" if kind else name))


def _summaries(registry: Registry[Any]) -> list[dict[str, Any]]:
    return [{"name": name, "summary": part.summary} for name, part in registry.items()]


def _algorithms() -> list[dict[str, Any]]:
    from headwater.algorithms import ALGORITHMS

    rows = []
    for name, part in ALGORITHMS.items():
        info = part.info
        stages = dict(zip(("local", "teachers", "consolidation"), info.stages, strict=True))
        facts = {"models a round": info.models, "needs": ", ".join(info.needs) or "nothing"}
        rows.append({"name": name, "summary": info.summary, "stages": stages | facts})
    return rows


def _datasets() -> list[dict[str, Any]]:
    from headwater.data import DATASETS

    return _summaries(DATASETS)


def _models() -> list[dict[str, Any]]:
    from headwater.models import MODELS

    return _summaries(MODELS)


def _partitions() -> list[dict[str, Any]]:
    from headwater.partition import PARTITIONS

    return _summaries(PARTITIONS)


def _presets() -> list[dict[str, Any]]:
    from headwater import presets

    return [{"name": name, "summary": summary} for name, summary in presets.names().items()]


KINDS = {
    "algorithms": _algorithms,
    "datasets": _datasets,
    "models": _models,
    "partitions": _partitions,
    "presets": _presets,
}
