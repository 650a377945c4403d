"""Put what `headwater reproduce` wrote of a finished table beside the table's own file.

    python experiments/collect.py experiments/traffic/table.toml runs/traffic --command "make traffic"

Copies table.md, table.csv and the picture, and writes obtained.csv (a row a run and tested round) and machine.json. A
file that is not called table.toml gives its name to what is written: feddf.toml makes feddf.md, feddf.csv and so on.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headwater.report.runs import RowValue, RunRecord, read


def runs_of(found: dict[str, Any], out: Path) -> list[tuple[str, str, RunRecord]]:
    """Row, column and run of every place and seed; places that share a run each have it."""
    return [(cell["row"], cell["column"], read(out / run)) for cell in found["cells"] for run in cell["runs"].values()]


def released(row: dict[str, Any]) -> float | None:
    """Classes that clients shared in a round, summed over clients."""
    return float(sum(row["released"].values())) if "released" in row else None


KEYS = ("validation_accuracy", "local_accuracy", "average_accuracy", "ensemble_accuracy")
KEYS += ("teacher_accuracy", "student_before", "student_after")
# Further values of a round, each a column where some run has it.
FURTHER: dict[str, RowValue] = {**{key: key for key in KEYS}, "released": released}


def obtained(runs: list[tuple[str, str, RunRecord]], path: Path) -> None:
    """A line a run and tested round; a run that serves several columns stands in the first."""
    runs = list({run.path: (row, column, run) for row, column, run in reversed(runs)}.values())[::-1]
    further = {name: key for name, key in FURTHER.items() if any(run.curve(key) for _, _, run in runs)}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "column", "seed", "round", "accuracy", "long_link_bytes_so_far", *further])
        for row, column, run in runs:
            sent, also = run.traffic(), [dict(run.curve(key)) for key in further.values()]
            for at, accuracy in run.curve():
                rest = [round(values[at], 4) if at in values else "" for values in also]
                writer.writerow([row, column, run.seed, at, round(accuracy, 4), int(sent[at]), *rest])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("table", type=Path)
    asked.add_argument("out", type=Path, help="what reproduce was given as --out")
    asked.add_argument("--command", required=True)
    asked.add_argument("--commit", default="", help="of the code that ran, where it is not the one at hand")
    given = asked.parse_args()
    here, name = given.table.parent, given.table.stem
    machine, prefix = ("machine.json", "") if name == "table" else (f"{name}.machine.json", f"{name}_")
    found = json.loads((given.out / "table.json").read_text(encoding="utf-8"))
    runs = runs_of(found, given.out)
    unfinished = [str(run.path) for _, _, run in runs if not run.finished]
    if found["failed"] or unfinished:
        sys.exit(f"not all runs are finished, so nothing is written: {[*found['failed'], *unfinished][0]}")
    for kind in ("md", "csv"):
        shutil.copyfile(given.out / f"table.{kind}", here / f"{name}.{kind}")
    if (given.out / "picture.png").is_file():
        shutil.copyfile(given.out / "picture.png", here / ("picture.png" if name == "table" else f"{name}.png"))
    obtained(runs, here / f"{prefix}obtained.csv")
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=here).stdout
    results = {run.path: run.result or {} for _, _, run in runs}
    hashes: dict[str, dict[str, str]] = {}
    for row, column, run in runs:
        hashes.setdefault(f"{row}, {column}", {})[str(run.seed)] = results[run.path]["model_sha256"]
    about = {
        "command": given.command,
        "commit": given.commit or head.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
        "runs": len(results),
        "seconds_of_all_runs": round(sum(result["seconds"] for result in results.values())),
        "versions": next(iter(results.values()))["versions"],
        "model_sha256": hashes,
    }
    (here / machine).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
