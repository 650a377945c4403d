"""Turn the run directories of run.py into what is committed beside this file.

    python experiments/cifar10_resnet8/collect.py [--runs runs/cifar10_resnet8]

Writes obtained.csv (a row a round), table.md (a row a variant, intervals over seeds), curves.png and machine.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from run import VARIANTS

from headwater.core.statistics import mean_interval
from headwater.report import figures
from headwater.report.grouping import MethodRuns
from headwater.report.runs import RunRecord, read

HERE = Path(__file__).parent


def table(found: dict[str, list[RunRecord]]) -> str:
    """Final accuracy with t-intervals over seeds, gains over FedAvg by seed, and the long link's bytes."""
    lines = [
        "| variant | final accuracy, % | over FedAvg, points, by seed | long link, MB a round |",
        "|---|---|---|---|",
    ]
    base = {run.seed: run.accuracy or 0.0 for run in found["fedavg"]}
    for name, runs in found.items():
        final = [100 * (run.accuracy or 0.0) for run in runs]
        gains = ", ".join(f"{100 * ((run.accuracy or 0.0) - base[run.seed]):+.1f}" for run in runs)
        traffic = fmean(max(run.traffic().values()) / run.done for run in runs) / 1e6
        lines.append(f"| {name} | {interval(final)} | {gains} | {traffic:.2f} |")
    return "\n".join(lines) + "\n"


def interval(values: list[float]) -> str:
    mean, half = mean_interval(values)
    return f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=Path, default=Path("runs/cifar10_resnet8"))
    asked.add_argument("--commit", default="", help="of the code that ran, where it is not the one at hand")
    given = asked.parse_args()
    folder = given.runs
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    found = {name: [read(p) for p in sorted((folder / name).glob("seed-*"))] for name in VARIANTS}
    found = {name: [run for run in runs if run.finished] for name, runs in found.items()}
    with (HERE / "obtained.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        extras = ("teacher_accuracy", "student_before", "student_after")
        writer.writerow(["variant", "seed", "round", "accuracy", "long_link_bytes_so_far", *extras])
        for name, runs in found.items():
            for run in runs:
                bytes_by = run.traffic()
                for row in run.rows:
                    told = [round(row[key], 4) if key in row else "" for key in extras]
                    writer.writerow([name, run.seed, row["round"], row["accuracy"], int(bytes_by[row["round"]]), *told])
    (HERE / "table.md").write_text(table(found), encoding="utf-8")
    figures.curves([MethodRuns(name, tuple(runs)) for name, runs in found.items()], HERE / "curves.png")
    results = [run.result or {} for runs in found.values() for run in runs]
    about = {
        "command": "make cifar10-resnet8",
        "commit": given.commit or here.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
        "versions": results[0]["versions"],
        "model_sha256": {
            name: {str(run.seed): (run.result or {})["model_sha256"] for run in runs} for name, runs in found.items()
        },
    }
    (HERE / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
