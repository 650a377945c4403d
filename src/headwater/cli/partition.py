"""`headwater partition`: shows a split without training."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.cli.options import Options, Source, takes
from headwater.cli.run import plain_name
from headwater.cli.terminal import as_json, console, reading, status, table
from headwater.errors import OutputError

if TYPE_CHECKING:
    from headwater.partition.partition import Partition
    from headwater.partition.summary import LabelDistance, PartitionSummary

PICTURE, MANIFEST = "partition.png", "partition.json"
DISTANCES = {"total_variation": "total variation", "jensen_shannon": "Jensen–Shannon"}
TIERS = ("clients", "sectors")


@takes("sets seed rounds out engine workers data_dir quiet json force")
def partition(options: Options, source: Source = None) -> None:
    """Show a split before using it.

    Who would hold what: counts, label distances from the whole, a figure and the manifest with its hash.
    """
    from headwater.cli.directory import check_path

    config = options.config(source)
    out = options.out or Path("runs") / f"partition-{plain_name(config.data.name)}-seed{config.seed}"
    check_path(out)
    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.partition.figure import figure
        from headwater.partition.summary import summarise
        from headwater.training.experiment import prepare

        made = prepare(config)
    labels, classes = made.split.train.y.numpy(), made.split.classes
    found = summarise(made.partition, labels, classes)
    manifest = made.manifest()
    _check_free(out / MANIFEST, made.partition.sha256, options.force)
    out.mkdir(parents=True, exist_ok=True)
    with status("drawing the split …", options.quiet):
        figure(made.partition, labels, classes, out / PICTURE, made.class_names)
    (out / MANIFEST).write_text(json_text.dumps(manifest), encoding="utf-8")
    if options.json:
        as_json(_facts(found, manifest, out))
        return
    shown = console()
    if counted := manifest.get("counted"):
        shown.print(f"the first {counted['first']} of {counted['of']} clients, which draw from one pool:")
    for tier in TIERS:
        shown.print(_table(tier, getattr(found, tier), made.partition))
    for distance, words in DISTANCES.items():
        by_tier = ", ".join(f"{tier} {found.mean(tier, distance):.3f}" for tier in TIERS)
        shown.print(f"mean label distance from the whole ({words}, by size): {by_tier}")
    shown.print(f"sha256 {made.partition.sha256}", soft_wrap=True)
    shown.print(f"figure: {out / PICTURE}", soft_wrap=True)
    shown.print(f"manifest: {out / MANIFEST}", soft_wrap=True)


def _check_free(file: Path, sha256: str, force: bool) -> None:
    """Refuse to replace another split, which may be that of a run, unless forced."""
    try:
        held = json_text.loads(file.read_text(encoding="utf-8"))["sha256"] if file.exists() else sha256
    except (ValueError, KeyError, TypeError):
        held = None
    if held != sha256 and not force:
        raise OutputError(f"{file} holds another split; choose another --out, or replace it with --force")


def _table(tier: str, rows: Sequence[LabelDistance], partition: Partition) -> Any:
    """One row per client or sector: its number and, if the data has one, its name."""
    names = partition.client_names if tier == "clients" else partition.sector_names
    numbers = ("number", *(("sector",) if tier == "clients" else ()), "samples", "classes", *DISTANCES.values())
    lines = []
    for row in rows:
        sector = [partition.sector_name(row.sector)] if tier == "clients" else []
        far = ["–" if (value := getattr(row, key)) is None else f"{value:.3f}" for key in DISTANCES]
        line = [str(row.number), *sector, str(row.size), str(row.classes), *far]
        lines.append([names[row.number], *line] if names else line)
    return table([*(("name",) if names else ()), *numbers], lines, title=tier, right=numbers)


def _facts(found: PartitionSummary, manifest: dict[str, Any], out: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from headwater.partition.partition import NAMES

    return {
        "sha256": manifest["sha256"],
        **({"counted": manifest["counted"]} if "counted" in manifest else {}),
        **{key: manifest[key] for key in NAMES if key in manifest},
        **{tier: [asdict(row) for row in getattr(found, tier)] for tier in TIERS},
        **{f"mean_{distance}": {tier: found.mean(tier, distance) for tier in TIERS} for distance in DISTANCES},
        "counts": found.counts.tolist(),
        "figure": str(out / PICTURE),
        "manifest": str(out / MANIFEST),
    }
