"""`headwater partition`: a split before it is used."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.cli.options import (
    DataDir,
    Engine,
    Force,
    Json,
    Out,
    Quiet,
    Rounds,
    Seed,
    Sets,
    Source,
    Workers,
    configure,
)
from headwater.cli.run import plain_name
from headwater.cli.show import as_json, table
from headwater.cli.show import out as console
from headwater.errors import OutputError

if TYPE_CHECKING:
    from headwater.partition.summary import Summary

PICTURE, MANIFEST = "partition.png", "partition.json"


def partition(
    source: Source = None,
    sets: Sets = None,
    seed: Seed = None,
    rounds: Rounds = None,
    out: Out = None,
    engine: Engine = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    force: Force = False,
) -> None:
    """Show a split before using it.

    Who would hold what: counts, label distances from the whole, a figure and the manifest with its hash.
    """
    from headwater.cli.directory import check_path
    from headwater.cli.progress import status

    config = configure(source, sets, seed=seed, rounds=rounds, engine=engine, workers=workers, data_dir=data_dir)
    out = out or Path("runs") / f"partition-{plain_name(config.data.name)}-seed{config.seed}"
    check_path(out)
    with status(f"reading {config.data.name} …", quiet):
        from headwater.experiment import prepare
        from headwater.partition.figure import figure
        from headwater.partition.summary import summarise

        made = prepare(config)
    labels, classes = made.split.train.y.numpy(), made.split.classes
    found = summarise(made.partition, labels, classes)
    manifest = made.partition.told(labels, classes, made.class_names)
    _check_free(out / MANIFEST, made.partition.sha256, force)
    out.mkdir(parents=True, exist_ok=True)
    with status("drawing the split …", quiet):
        figure(made.partition, labels, classes, out / PICTURE, made.class_names)
    (out / MANIFEST).write_text(json_text.dumps(manifest), encoding="utf-8")
    if json:
        as_json(_facts(found, manifest, out))
        return
    shown = console()
    if counted := manifest.get("counted"):
        shown.print(f"the first {counted['first']} of {counted['of']} clients, which draw from one pool:")
    for title, rows in (("clients", found.clients), ("sectors", found.sectors)):
        shown.print(table(list(HEADINGS), [_cells(row) for row in rows], title=title, right=HEADINGS))
    by_tier = ", ".join(f"{tier} {found.mean(tier):.3f}" for tier in ("clients", "sectors"))
    shown.print(f"mean label distance (total variation, by size): {by_tier}")
    shown.print(f"sha256 {made.partition.sha256}", soft_wrap=True)
    shown.print(f"figure: {out / PICTURE}", soft_wrap=True)
    shown.print(f"manifest: {out / MANIFEST}", soft_wrap=True)


def _check_free(file: Path, sha256: str, force: bool) -> None:
    """Another split in the same place, which may be that of a run, is not replaced unasked."""
    try:
        held = json_text.loads(file.read_text(encoding="utf-8"))["sha256"] if file.exists() else sha256
    except (ValueError, KeyError, TypeError):
        held = None
    if held != sha256 and not force:
        raise OutputError(f"{file} holds another split; choose another --out, or replace it with --force")


HEADINGS = ("number", "sector", "samples", "classes", "total variation", "Jensen–Shannon")


def _cells(row: Any) -> list[str]:
    distances = (row.total_variation, row.jensen_shannon)
    return [str(row.number), str(row.sector), str(row.size), str(row.classes)] + [
        "–" if distance is None else f"{distance:.3f}" for distance in distances
    ]


def _facts(found: Summary, manifest: dict[str, Any], out: Path) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "sha256": manifest["sha256"],
        **({"counted": manifest["counted"]} if "counted" in manifest else {}),
        "clients": [asdict(row) for row in found.clients],
        "sectors": [asdict(row) for row in found.sectors],
        "mean_total_variation": {tier: found.mean(tier) for tier in ("clients", "sectors")},
        "counts": found.counts.tolist(),
        "figure": str(out / PICTURE),
        "manifest": str(out / MANIFEST),
    }
