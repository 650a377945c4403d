"""FedEED's pipelining against waiting and against FedDF, as a model: how long a round takes if clients come and go.

    python experiments/pipelining/run.py

Writes beside this file: obtained.csv (a row a setting, schedule and seed), table.md (means over seeds), period.png,
timeline.png and machine.json. It takes less than a minute and trains nothing.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headwater.report.style import LIGHT
from headwater.theory.pipelining import PipelineSetting, Timeline, compare, scattered, simulate

HERE = Path(__file__).parent
# 20 clients of which 8 are active and 4 models, as in FedEED's experiments; times in units of a client's training.
CLIENTS, ACTIVE, COHORTS, ROUNDS, SEEDS = 20, 8, 4, 100, range(20)
WORK, SERVER, PERIOD = 1.0, 1.0, 10.0
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Name: time of a teacher's outputs, and what becomes of work whose client goes away.
CASES: dict[str, dict[str, Any]] = {
    "equal distillation": {},
    "teachers cost": {"forward": 0.1},
    "equal distillation, work pauses": {"away": "pause"},
}
LOOKS = {
    "sequential": {"color": LIGHT.colours[1], "linestyle": "-"},
    "feddf": {"color": LIGHT.colours[3], "linestyle": (0, (2, 2))},
    "one ahead": {"color": LIGHT.colours[2], "linestyle": (0, (5, 2))},
    "pipelined": {"color": LIGHT.colours[0], "linestyle": "-"},
}
NAMES = {
    "sequential": "FedEED, everybody waits",
    "feddf": "FedDF",
    "one ahead": "FedEED, pipelined, one round ahead at most",
    "pipelined": "FedEED, pipelined",
}


def setting(share: float, seed: int, rounds: int = ROUNDS, **options: Any) -> PipelineSetting:
    there = scattered(CLIENTS, share, PERIOD, seed)
    return PipelineSetting(CLIENTS, rounds, WORK, SERVER, COHORTS, ACTIVE, there, seed=seed, **options)


def example() -> PipelineSetting:
    """Eight clients that are there for 3 of every 10, all active, four rounds: small enough to draw."""
    return PipelineSetting(8, 4, WORK, SERVER, COHORTS, None, scattered(8, 0.3, PERIOD, seed=0))


def play(given: PipelineSetting) -> dict[str, Timeline]:
    """Every schedule, and pipelining by an implementation that keeps one round in flight."""
    return {**compare(given), "one ahead": simulate(replace(given, lookahead=1), "pipelined")}


def measure() -> list[dict[str, Any]]:
    """One row for every case, share, seed and schedule, and the example's."""
    plan = [
        (case, share, seed, setting(share, seed, **options))
        for case, options in CASES.items()
        for share in SHARES
        for seed in SEEDS
    ]
    return [
        {
            "case": case,
            "share": share,
            "seed": seed,
            "schedule": schedule,
            "period": round(line.period, 6),
            "makespan": round(line.makespan, 6),
            "ahead": line.ahead,
        }
        for case, share, seed, given in [*plan, ("example of 8 clients", 0.3, 0, example())]
        for schedule, line in play(given).items()
    ]


def periods(rows: list[dict[str, Any]], case: str, share: float, schedule: str) -> list[float]:
    return [r["period"] for r in rows if (r["case"], r["share"], r["schedule"]) == (case, share, schedule)]


def table(rows: list[dict[str, Any]]) -> str:
    """Mean periods over seeds, and how much of the waiting one's the pipelined one takes: mean and range by seed."""
    lines = [
        "| case | there | everybody waits | FedDF | one round ahead | pipelined | pipelined / waiting, by seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for share in SHARES:
            found = {name: periods(rows, case, share, name) for name in LOOKS}
            ratios = [ours / theirs for ours, theirs in zip(found["pipelined"], found["sequential"], strict=True)]
            means = " | ".join(f"{fmean(found[name]):.2f}" for name in LOOKS)
            spread = f"{fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            lines.append(f"| {case} | {share:.0%} | {means} | {spread} |")
    return "\n".join(lines) + "\n"


def draw_periods(rows: list[dict[str, Any]], path: Path) -> None:
    """Mean period by share in a band from the lowest to the highest seed, a panel a case."""
    figure = Figure(figsize=(12, 4.2), dpi=150, layout="constrained", facecolor=LIGHT.surface)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(CASES), sharey=True)
    for axes, (case, options) in zip(panels, CASES.items(), strict=True):
        for name, look in LOOKS.items():
            found = [periods(rows, case, share, name) for share in SHARES]
            across = [100 * share for share in SHARES]
            axes.fill_between(across, [min(f) for f in found], [max(f) for f in found], color=look["color"], alpha=0.12)
            axes.plot(across, [fmean(f) for f in found], label=NAMES[name], linewidth=2, **look)
        chain = WORK + SERVER + options.get("forward", 0.0) * COHORTS
        axes.axhline(chain, color=LIGHT.muted, linewidth=1, linestyle=(0, (1, 2)))
        axes.text(5, chain - 0.15, "train + distil model 0", color=LIGHT.muted, fontsize=8, ha="left", va="top")
        axes.set_title(case.capitalize(), fontsize=10)
        axes.set_xlabel("Time that a client is there, %")
        axes.set_xlim(0, 100)
        axes.grid(True, color=LIGHT.grid)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(0, 1.05 * max(row["period"] for row in rows))
    panels[0].set_ylabel("Mean period of a round, client trainings")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path)


def draw_timelines(lines: list[Timeline], path: Path) -> None:
    """Who does what when, one panel a schedule: pale where a client is there, coloured by round where it works."""
    figure = Figure(figsize=(12, 7), dpi=150, layout="constrained", facecolor=LIGHT.surface)
    FigureCanvasAgg(figure)
    longest = max(line.makespan for line in lines)
    rounds = lines[0].setting.rounds
    for axes, line in zip(figure.subplots(len(lines), 1, sharex=True), lines, strict=True):
        there = line.setting.presence or ()
        for client, one in enumerate(there):
            for number in range(-1, int(longest / one.period) + 2):
                axes.barh(client + 1, one.on, left=number * one.period - one.phase, height=0.9, color=LIGHT.grid)
        for job in line.jobs:
            if job.what == "aggregate":
                continue
            row = 0 if job.client is None else job.client + 1
            colour = LIGHT.colours[(job.round - 1) % len(LIGHT.colours)]
            look = {"edgecolor": LIGHT.surface, "linewidth": 0.8, "height": 0.7}
            axes.barh(row, job.end - job.start, left=job.start, color=colour, **look)
            text = "distil" if job.client is None else str(job.cohort)
            where = ((job.start + job.end) / 2, row)
            axes.text(*where, text, color="white", fontsize=7, ha="center", va="center_baseline")
        axes.axvline(line.makespan, color=LIGHT.ink, linewidth=1)
        axes.text(line.makespan - 0.15, len(there) + 0.3, f"{line.makespan:.1f}", ha="right", va="center", fontsize=9)
        axes.set_yticks(range(len(there) + 1), ["server", *(f"client {i}" for i in range(len(there)))], fontsize=8)
        axes.set_title(NAMES[line.schedule], loc="left", fontsize=10)
        axes.set_xlim(0, longest + 0.3)
        axes.set_ylim(-0.6, len(there) + 0.7)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("Time, client trainings (numbers in bars: the model that is trained)")
    keys = [Patch(color=LIGHT.colours[i], label=f"round {i + 1}") for i in range(rounds)]
    figure.legend(
        handles=[*keys, Patch(color=LIGHT.grid, label="client is there")],
        loc="outside upper center",
        ncols=rounds + 1,
        frameon=False,
    )
    figure.savefig(path)


def main() -> None:
    rows = measure()
    with (HERE / "obtained.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (HERE / "table.md").write_text(table(rows), encoding="utf-8")
    draw_periods(rows, HERE / "period.png")
    draw_timelines([simulate(example(), "sequential"), simulate(example(), "pipelined")], HERE / "timeline.png")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": "python experiments/pipelining/run.py",
        "commit": commit.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores; a model, so nothing here depends on the machine",
        "versions": {"python": platform.python_version(), "numpy": version("numpy")},
    }
    (HERE / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
