"""`headwater list`: what there is, by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwater.cli.options import Json
from headwater.cli.show import as_json, out, table
from headwater.errors import ConfigError, nearest
from headwater.registry import Registry

Kind = Annotated[
    str | None, typer.Argument(metavar="algorithms|datasets|models|partitions|presets", show_default=False)
]


def list_(kind: Kind = None, json: Json = False) -> None:
    """List what there is, by name.

    Without a kind, everything.
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
        out().print(table([*headings, *stages], cells, title="" if kind else name))


def _entries(registry: Registry) -> list[dict[str, Any]]:
    rows = []
    for name, entry in registry.items():
        row: dict[str, Any] = {"name": name, "summary": entry.summary}
        rows.append(row | {"stages": dict(entry.extra)} if entry.extra else row)
    return rows


def _algorithms() -> list[dict[str, Any]]:
    from headwater.algorithms import ALGORITHMS
    from headwater.theory.communication import FORMULAS

    rows = _entries(ALGORITHMS)
    for row in rows:
        row["stages"] = {k: v for k, v in row["stages"].items() if k != "needs"} | {
            "models a round": FORMULAS[row["name"]].models,  # up, down on the long link | up, down inside sectors
            "needs": row["stages"]["needs"],
        }
    return rows


def _datasets() -> list[dict[str, Any]]:
    from headwater.data import DATASETS

    return _entries(DATASETS)


def _models() -> list[dict[str, Any]]:
    from headwater.models import MODELS

    return _entries(MODELS)


def _partitions() -> list[dict[str, Any]]:
    from headwater.partition import PARTITIONS

    return _entries(PARTITIONS)


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
