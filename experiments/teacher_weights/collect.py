"""Turn the run directories of run.py into what is committed beside this file.

    python experiments/teacher_weights/collect.py [--runs runs/teacher_weights]

Writes obtained.csv (a row a cell), table.md (a row a method, skew and weighting, intervals over seeds), weights.png and
machine.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from run import ALPHAS, METHODS, WEIGHTS, folder

from headwater.core.statistics import mean_interval
from headwater.report import style
from headwater.report.runs import RunRecord, read

HERE = Path(__file__).parent
COLUMNS = ("teacher_mean", "teacher_last", "student_mean", "student_last")


@dataclass(frozen=True)
class Cell:
    """One finished run: the teacher on the validation set, the student (the global model) on the test set."""

    method: str
    weights: str
    alpha: str
    run: RunRecord

    def number(self, column: str) -> float:
        who, when = column.split("_")
        key = "teacher_accuracy" if who == "teacher" else "accuracy"
        values = [float(row[key]) for row in self.run.rows if row.get(key) is not None]
        return fmean(values) if when == "mean" else values[-1]


def cells(runs: Path) -> list[Cell]:
    found = []
    for method in METHODS:
        for alpha in ALPHAS:
            for weights in WEIGHTS:
                for path in sorted(folder(runs, (method, weights, alpha, "0")).parent.glob("seed-*")):
                    record = read(path)
                    found += [Cell(method, weights, alpha, record)] if record.finished else []
    return found


def groups(found: list[Cell]) -> dict[tuple[str, str, str], list[Cell]]:
    result: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in found:
        result.setdefault((cell.method, cell.alpha, cell.weights), []).append(cell)
    return result


def interval(values: list[float]) -> str:
    mean, half = mean_interval(values)
    return f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"


def table(found: list[Cell]) -> str:
    """Accuracies with t-intervals over seeds, and how far the student is ahead of weights by samples, seed by seed."""
    lines = [
        "| method | alpha | weights | teacher, mean of rounds, % | teacher, last, % | student, mean of rounds, % "
        "| student, last, % | student's mean over 'samples', points, by seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    by_group = groups(found)
    for (method, alpha, weights), team in by_group.items():
        base = {c.run.seed: c.number("student_mean") for c in by_group.get((method, alpha, "samples"), [])}
        gains = [(c.number("student_mean") - base[c.run.seed]) * 100 for c in team if c.run.seed in base]
        numbers = [interval([100 * c.number(column) for c in team]) for column in COLUMNS]
        told = ", ".join(f"{gain:+.1f}" for gain in gains)
        lines.append(" | ".join([f"| {method}", alpha, weights, *numbers, f"{told} |"]))
    return "\n".join(lines) + "\n"


def figure(found: list[Cell], path: Path) -> None:
    """Teacher and student, mean over rounds, by weighting: a panel a method and skew, a dot a seed, a bar the mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    drawn = Figure(figsize=(11, 6.4), dpi=150, layout="constrained", facecolor=style.LIGHT.surface)
    FigureCanvasAgg(drawn)
    panels = drawn.subplots(len(ALPHAS), len(METHODS), sharex=True, sharey="row", squeeze=False)
    by_group = groups(found)
    looks = {"teacher": (-0.15, "o", style.LIGHT.colours[0]), "student": (0.15, "s", style.LIGHT.colours[1])}
    for row, alpha in enumerate(ALPHAS):
        for column, method in enumerate(METHODS):
            axes = panels[row][column]
            for at, weights in enumerate(WEIGHTS):
                for who, (shift, mark, colour) in looks.items():
                    values = [100 * c.number(f"{who}_mean") for c in by_group.get((method, alpha, weights), [])]
                    if values:
                        axes.plot([at + shift] * len(values), values, mark, color=colour, markersize=4, alpha=0.6)
                        axes.plot([at + shift - 0.12, at + shift + 0.12], [fmean(values)] * 2, color=colour)
            axes.set_title(f"{method}, alpha {alpha}", fontsize=10)
            axes.set_xlim(-0.5, len(WEIGHTS) - 0.5)
            axes.set_xticks(range(len(WEIGHTS)), WEIGHTS, fontsize=8)
            axes.grid(True, axis="y", color=style.LIGHT.grid)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        panels[row][0].set_ylabel("Accuracy, mean of rounds, %")
    keys = [Line2D([], [], marker=mark, color=colour, label=who) for who, (_, mark, colour) in looks.items()]
    drawn.legend(handles=keys, loc="outside upper center", ncols=2, frameon=False)
    drawn.savefig(path)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=Path, default=Path("runs/teacher_weights"))
    asked.add_argument("--into", type=Path, default=HERE, help="where to write")
    asked.add_argument("--commit", default="", help="of the code that ran, where it is not the one at hand")
    given = asked.parse_args()
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    found = cells(given.runs)
    if not found:
        asked.error(f"there is no finished run in {given.runs}; start run.py first")
    given.into.mkdir(parents=True, exist_ok=True)
    with (given.into / "obtained.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "alpha", "weights", "seed", "rounds", *COLUMNS])
        for cell in found:
            numbers = [round(cell.number(column), 4) for column in COLUMNS]
            writer.writerow([cell.method, cell.alpha, cell.weights, cell.run.seed, cell.run.done, *numbers])
    (given.into / "table.md").write_text(table(found), encoding="utf-8")
    figure(found, given.into / "weights.png")
    results = [cell.run.result or {} for cell in found]
    about = {
        "command": "python experiments/teacher_weights/run.py && python experiments/teacher_weights/collect.py",
        "commit": given.commit or here.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
        "versions": results[0]["versions"],
        "model_sha256": {
            f"{c.method} {c.alpha} {c.weights} {c.run.seed}": r["model_sha256"]
            for c, r in zip(found, results, strict=True)
        },
    }
    (given.into / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
