"""Turn the run directories of run.py into what is committed beside this file.

    python experiments/fashion_mnist_methods/collect.py [--runs runs/fashion_mnist_methods]

Writes grid.csv (the choice of learning rates), obtained.csv (a row a round), table.md (a row a method, intervals over
seeds), dots.png and machine.json.
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
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from run import GRID, METHODS

from headwater.core.statistics import mean_interval

HERE = Path(__file__).parent
EXTRAS = (
    "local_accuracy",
    "ensemble_accuracy",
    "averaged_accuracy",
    "teacher_accuracy",
    "student_before",
    "student_after",
)
Found = dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]]  # method → (result, rows) by seed


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    return json.loads((folder / "result.json").read_text(encoding="utf-8")), rows


def write(name: str, heads: list[str], rows: list[list[Any]]) -> None:
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([heads, *rows])


def grid(folder: Path) -> None:
    rows: list[list[Any]] = []
    for method in METHODS:
        for lr in GRID:
            path = folder / method / f"lr-{lr}" / "result.json"
            score = json.loads(path.read_text(encoding="utf-8"))["accuracy"] if path.exists() else ""
            rows.append([method, lr, score])
    write("grid.csv", ["method", "local_lr", "accuracy_on_images_held_out_of_training"], rows)


def interval(values: list[float]) -> str:
    mean, half = mean_interval([100 * value for value in values])
    if half is None:
        return f"{mean:.1f}"
    if mean - half < 0 or mean + half > 100:  # it would leave the range of an accuracy
        return f"{mean:.1f} [{max(0.0, mean - half):.1f}, {min(100.0, mean + half):.1f}]"
    return f"{mean:.1f} ± {half:.1f}"


def table(found: Found, chosen: dict[str, float]) -> str:
    """Sorted by the mean over seeds of the final accuracy."""
    lines = [
        "| method | final accuracy, % | on clients' own test rows, % | ensemble, % "
        "| long link, MB a round | local lr |",
        "|---|---|---|---|---|---|",
    ]
    for method in sorted(found, key=lambda m: -fmean(result["accuracy"] for result, _ in found[m])):
        results = [result for result, _ in found[method]]
        link = [result["ledger"]["server_sector"] for result in results]
        megabytes = fmean((one["up_bytes"] + one["down_bytes"]) / results[0]["rounds"] for one in link) / 1e6
        cells = [interval([result["accuracy"] for result in results])]
        for key in ("local_accuracy", "ensemble_accuracy"):
            cells.append(interval([r[key] for r in results]) if all(key in r for r in results) else "")
        lines.append(f"| {method} | {' | '.join(cells)} | {megabytes:.2f} | {chosen[method]} |")
    return "\n".join(lines) + "\n"


def dots(found: Found, path: Path) -> None:
    """Final accuracy of every seed, by method; the mean as a bar."""
    order = sorted(found, key=lambda m: fmean(result["accuracy"] for result, _ in found[m]))
    figure, axes = pyplot.subplots(figsize=(7, 0.28 * len(order) + 1))
    for height, method in enumerate(order):
        values = [100 * result["accuracy"] for result, _ in found[method]]
        colour = "#777777" if method in ("centralized", "local") else "#1f5fa8"
        axes.plot(values, [height] * len(values), "o", color=colour, alpha=0.55, markersize=5)
        axes.plot([fmean(values)] * 2, [height - 0.35, height + 0.35], color=colour, linewidth=2)
    axes.set_yticks(range(len(order)), order)
    axes.set_xlabel("test accuracy after 15 rounds, % (a dot a seed, the bar their mean)")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=Path, default=Path("runs/fashion_mnist_methods"))
    asked.add_argument("--commit", default="", help="of the code that ran, where it is not the one at hand")
    given = asked.parse_args()
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    paths = {m: sorted((given.runs / "runs" / m).glob("seed-*/result.json")) for m in METHODS}
    found: Found = {m: [read(path.parent) for path in some] for m, some in paths.items() if some}
    chosen = json.loads((given.runs / "chosen.json").read_text(encoding="utf-8"))
    grid(given.runs / "grid")
    rows = []
    for method, runs in found.items():
        for result, history in runs:
            sent = 0
            for row in history:
                sent += sum(row["bytes"]["server_sector"].values())
                extras = [round(row[key], 4) if row.get(key) is not None else "" for key in EXTRAS]
                rows.append([method, result["seed"], row["round"], row["accuracy"], sent, *extras])
    write("obtained.csv", ["method", "seed", "round", "accuracy", "long_link_bytes_so_far", *EXTRAS], rows)
    (HERE / "table.md").write_text(table(found, chosen), encoding="utf-8")
    dots(found, HERE / "dots.png")
    about = {
        "command": "make compare-methods",
        "commit": given.commit or here.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
        "versions": next(iter(found.values()))[0][0]["versions"],
        "model_sha256": {m: {str(r["seed"]): r["model_sha256"] for r, _ in runs} for m, runs in found.items()},
    }
    (HERE / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(table(found, chosen))


if __name__ == "__main__":
    main()
