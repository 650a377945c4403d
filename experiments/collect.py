"""Put what `headwater reproduce` found for a table beside the table's own file.

    python experiments/collect.py experiments/traffic/table.toml runs/traffic --command "make traffic"

Writes obtained.csv (a row a run and tested round), from it table.md, table.csv and the picture, and machine.json. A
file that is not called table.toml gives its name to what is written: feddf.toml makes feddf.md, feddf.csv and so on.
Runs that obtained.csv has already and that were not made anew are kept, so seeds can be added later and elsewhere.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from committed import Line, draw, joined, results
from committed import read as read_lines

from headwater.papers import scales
from headwater.papers.table import load
from headwater.papers.table_files import TableReport, csv_text, markdown
from headwater.report.runs import RowValue, RunRecord, read
from headwater.sweep import CellFile


def runs_of(found: dict[str, Any], out: Path) -> list[tuple[str, str, RunRecord]]:
    """Row, column and run of every place and seed; places that share a run each have it."""
    return [(cell["row"], cell["column"], read(out / run)) for cell in found["cells"] for run in cell["runs"].values()]


def released(row: dict[str, Any]) -> float | None:
    """Classes that clients shared in a round, summed over clients."""
    return float(sum(row["released"].values())) if "released" in row else None


KEYS = ("validation_accuracy", "local_accuracy", "average_accuracy", "ensemble_accuracy")
KEYS += ("teacher_accuracy", "student_before", "student_after")
FIRST = ("row", "column", "seed", "round", "accuracy", "long_link_bytes_so_far")
# Further values of a round, each a column where some run has it.
FURTHER: dict[str, RowValue] = {**{key: key for key in KEYS}, "released": released}


def lines_of(runs: list[tuple[str, str, RunRecord]]) -> list[Line]:
    """A line a run and tested round; a run that serves several columns stands in the first."""
    runs = list({run.path: (row, column, run) for row, column, run in reversed(runs)}.values())[::-1]
    found = []
    for row, column, run in runs:
        sent, also = run.traffic(), {name: dict(run.curve(key)) for name, key in FURTHER.items()}
        file = CellFile.read(run.path)
        alike = {"same_as": ": ".join(file.facts["same_as"])} if file and "same_as" in file.facts else {}
        for at, accuracy in run.curve():
            more = {name: str(round(values[at], 6)) for name, values in also.items() if at in values}
            place = {"row": row, "column": column, "seed": str(run.seed), "round": str(at)}
            numbers = {"accuracy": str(round(accuracy, 6)), "long_link_bytes_so_far": str(int(sent[at]))}
            found.append(place | numbers | more | alike)
    return found


def write_lines(lines: list[Line], path: Path) -> None:
    names = [name for name in (*FIRST, *FURTHER, "same_as") if any(line.get(name) for line in lines)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


Hashes = dict[str, dict[str, str]]  # row and column → seed → hash of the model


def earlier(path: Path, new: Hashes) -> tuple[list[dict[str, Any]], Hashes]:
    """What earlier calls said of where they ran, and the models that were not made anew."""
    if not path.is_file():
        return [], {}
    old = json.loads(path.read_text(encoding="utf-8"))
    models = old.pop("model_sha256").items()
    left = {place: {seed: sha for seed, sha in own.items() if seed not in new.get(place, {})} for place, own in models}
    kept = {place: own for place, own in left.items() if own}
    return ([*old.pop("earlier", []), old] if kept else []), kept


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("table", type=Path)
    asked.add_argument("out", type=Path, help="what reproduce was given as --out")
    asked.add_argument("--command", required=True)
    asked.add_argument("--baseline", default="", help="the row that others are compared with; the first if left out")
    asked.add_argument("--note", default="", help="a sentence on the machine")
    asked.add_argument("--commit", default="", help="of the code that ran, where it is not the one at hand")
    given = asked.parse_args()
    here, name = given.table.parent, given.table.stem
    machine, prefix = ("machine.json", "") if name == "table" else (f"{name}.machine.json", f"{name}_")
    found = json.loads((given.out / "table.json").read_text(encoding="utf-8"))
    runs = runs_of(found, given.out)
    unfinished = [str(run.path) for _, _, run in runs if not run.finished]
    if found["failed"] or unfinished:
        sys.exit(f"not all runs are finished, so nothing is written: {[*found['failed'], *unfinished][0]}")
    table = load(str(given.table), scales.names())
    data, about = here / f"{prefix}obtained.csv", here / machine
    lines = joined(table, read_lines(data), lines_of(runs))
    write_lines(lines, data)
    metrics = {cell["column"]: cell["metric"] for cell in found["cells"]}
    facts = {"scale": found["scale"], "remarks": found["remarks"], "baseline": given.baseline}
    shown = results(table, lines, metrics=metrics, **facts)
    (here / f"{name}.md").write_text(markdown(TableReport.of(shown)), encoding="utf-8")
    (here / f"{name}.csv").write_text(csv_text(shown), encoding="utf-8")
    draw(shown, lines, here / ("picture.png" if name == "table" else f"{name}.png"))
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=here).stdout
    ended = {run.path: run.result or {} for _, _, run in runs}
    seeds = {str(run.seed) for _, _, run in runs}
    new: Hashes = {}
    for row, column, run in runs:
        new.setdefault(f"{row}, {column}", {})[str(run.seed)] = ended[run.path]["model_sha256"]
    before, kept = earlier(about, new)
    hashes = {place: kept.get(place, {}) | new.get(place, {}) for place in (*kept, *(p for p in new if p not in kept))}
    told: dict[str, Any] = {
        "command": given.command,
        "commit": given.commit or head.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
        "seeds": sorted(seeds),
        "runs": len(ended),
        "seconds_of_all_runs": round(sum(result["seconds"] for result in ended.values())),
        "versions": next(iter(ended.values()))["versions"],
    }
    told |= {"note": given.note} if given.note else {}
    told |= {"earlier": before} if before else {}
    told["model_sha256"] = {place: dict(sorted(models.items())) for place, models in hashes.items()}
    about.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
