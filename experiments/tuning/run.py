"""What tuning the learning rate changes: four methods on Fashion-MNIST, with defaults and after `--tune local.lr`.

    python experiments/tuning/run.py [--runs runs/tuning] [--seeds 0,1,2]

Calls `headwater compare` twice, on the same data, split and seeds, and carries on where it was stopped. Writes
table.md, obtained.csv (a row a run), chosen.csv (a row a tried setting) and machine.json beside this file.
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

from headwater.core.statistics import mean_interval
from headwater.report.differences import LEGEND, paired
from headwater.report.runs import RunRecord, find
from headwater.sweep.tuning import FILE

HERE = Path(__file__).parent
METHODS = ("fedavg", "scaffold", "mtgc", "fedhead")
WAYS = {"defaults": [], "tuned": ["--tune", "local.lr", "--tune-budget", "3"]}


def compared(way: str, seeds: str, folder: Path) -> dict[str, list[RunRecord]]:
    """The runs of each method."""
    words = ["compare", *METHODS, "--config", str(HERE / "base.toml"), "--seeds", seeds, *WAYS[way]]
    subprocess.run([sys.executable, "-m", "headwater", *words, "--out", str(folder), "--quiet"], check=True)
    found: dict[str, list[RunRecord]] = {method: [] for method in METHODS}
    for run in find([folder]):
        if run.finished and str(run.seed) in seeds.split(","):  # not one that was stopped
            found[run.algorithm].append(run)
    return found


def rate(run: RunRecord) -> float:
    return float(run.config["local"]["lr"])


def table(runs: dict[str, dict[str, list[RunRecord]]], tried: dict[str, dict[str, Any]]) -> str:
    """Rates, accuracies of the last round, differences by seed, and what the choice took."""
    lines = [
        "| method | rate: default → chosen | tried, rounds in all | defaults, % | tuned, % | difference, points |",
        "|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        before, after = ({run.seed: run.accuracy or 0.0 for run in runs[way][method]} for way in WAYS)
        shown = []
        for values in (before, after):
            mean, half = mean_interval([100 * value for value in values.values()])
            shown.append(f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}")
        rows = tried[method]["rows"]
        cost = f"{len(rows)}, {sum(row['rounds'] for row in rows)}"
        rates = f"{rate(runs['defaults'][method][0]):g} → {rate(runs['tuned'][method][0]):g}"
        gap = paired(after, before)
        lines.append(f"| {method} | {rates} | {cost} | {' | '.join(shown)} | {gap.text if gap else ''} |")
    return "\n".join(lines) + f"\n\n± is half the 95 % t-interval over seeds. {LEGEND}\n"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=Path, default=Path("runs/tuning"))
    asked.add_argument("--seeds", default="0,1,2")
    given = asked.parse_args()
    runs = {way: compared(way, given.seeds, given.runs / way) for way in WAYS}
    files = {method: given.runs / "tuned" / "tune" / method / FILE for method in METHODS}
    tried = {method: json.loads(file.read_text(encoding="utf-8")) for method, file in files.items()}
    (HERE / "table.md").write_text(table(runs, tried), encoding="utf-8")
    with (HERE / "obtained.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["way", "method", "seed", "rate", "accuracy", "model_sha256"])
        for way, by_method in runs.items():
            for method, each in by_method.items():
                for run in each:
                    accuracy, result = run.accuracy or 0.0, run.result or {}
                    writer.writerow([way, method, run.seed, rate(run), f"{accuracy:.4f}", result.get("model_sha256")])
    with (HERE / "chosen.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "rate", "rounds", "validation_accuracy", "validation_loss"])
        for method, found in tried.items():
            for row in found["rows"]:
                numbers = (f"{row[key]:.4f}" for key in ("validation_accuracy", "validation_loss"))
                writer.writerow([method, row["settings"]["local.lr"], row["rounds"], *numbers])
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": f"python experiments/tuning/run.py --seeds {given.seeds}",
        "commit": head.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
    }
    (HERE / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print((HERE / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
