"""Does the measured gap lie under the FedHEAD paper's bounds (24), (6), (26) and (32)? Twenty random settings.

    python experiments/theory_bounds/run.py [--seeds 10] [--jobs 1] [--settings 1,2] [--long]

The processes are the theorems' own (process.py) on ℓ2-regularised softmax regression (problem.py), where the optimum
and every constant is known or measured. The program ends with an error if a mean gap is above its bound in any round.

It writes beside this file: obtained.csv (a row a setting and method), curves.csv (pictured settings), readings.csv (the
same with what the theorems leave open read otherwise), machine.json, table.md and bounds.png; and the tables in
docs/theory.md. `--long` (half an hour) follows one setting for 30 000 rounds with and without the theorems'
stopping, for long.csv and stopping.png; `--settings` runs some settings, shows them and writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pictures
from problem import Federation, Setting
from process import METHODS, Method, Process, Trace, Way

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
SETTINGS = range(1, 21)
LONG, ROUNDS = 2, 30_000
THEOREM = "as read here"
READINGS = {
    THEOREM: Way(),
    "leaders stop together": Way(stop="together"),
    "counter goes on by the longest": Way(counter="longest"),
    "stopping looks at labels": Way(judge="labels"),
    "no stopping": Way(stop="never"),
}


def bounds(trace: Trace, setting: Setting, federation: Federation, *, lowest: bool = False) -> np.ndarray:
    """The bound before round 1 and after every round. `lowest` takes δ = 1, ε = 0 and every phase in full: no reading
    of δ, ε, n̄_s and n̄_g gives less."""
    p = trace.constants(federation.constants)
    p = replace(p, delta=1.0, epsilon=0.0) if lowest else p
    return np.array([trace.bound(p, setting, t, whole=lowest) for t in range(trace.gaps.shape[1])])


def cell(number: int, method: Method, reading: str, seeds: int) -> dict[str, Any]:
    """One method in one setting: all that the files tell of it."""
    setting = Setting.draw(number)
    federation = Federation(setting)
    trace = Process(federation, method, seeds, READINGS[reading]).run()
    p = trace.constants(federation.constants)
    mean, over = trace.gaps.mean(axis=0), bounds(trace, setting, federation)
    shares = (mean / over)[1:]
    alone = (trace.gaps / over)[:, 1:].max()
    return {
        "setting": number,
        "method": method,
        "reading": reading,
        "seeds": seeds,
        "rounds": setting.rounds,
        "condition": p.condition,
        "client_gap": p.client_gap,
        "sector_gap": p.sector_gap,
        "reference_gap": p.reference_gap,
        "distance": p.distance,
        "gradient": p.gradient,
        "variance": p.variance,
        "delta": p.delta if method != "fedavg" else float("nan"),
        "epsilon": p.epsilon if method != "fedavg" else float("nan"),
        "off_labels": max(trace.sector.off, trace.server.off) if method != "fedavg" else float("nan"),
        "sector_mean": trace.sector.mean,
        "server_mean": trace.server.mean,
        "first_gap": mean[0],
        "last_gap": mean[-1],
        "last_bound": over[-1],
        "largest_share": shares.max(),
        "in_round": int(shares.argmax()) + 1,
        "largest_of_one_seed": alone,
        "largest_under_lowest": (mean / bounds(trace, setting, federation, lowest=True))[1:].max(),
        "curve": [(t, mean[t], over[t]) for t in range(1, len(mean))] if number in pictures.PICTURED else [],
    }


COLUMNS = [
    *("setting", "method", "seeds", "rounds", "condition", "client_gap", "sector_gap", "reference_gap", "distance"),
    *("gradient", "variance", "delta", "epsilon", "off_labels", "sector_mean", "server_mean"),
    *("first_gap", "last_gap", "last_bound", "largest_share", "in_round", "largest_of_one_seed"),
    "largest_under_lowest",
]
READ = ["reading", "setting", "method", "sector_mean", "server_mean", "last_gap", "last_bound", "largest_share"]


def told(value: Any) -> str:
    return ("" if np.isnan(value) else f"{value:.6g}") if isinstance(value, float) else str(value)


def write(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *([told(row[c]) for c in columns] for row in rows)])


def all_cells(numbers: list[int], readings: list[str], seeds: int, jobs: int) -> list[dict[str, Any]]:
    cells = [
        (number, method, reading, seeds)
        for reading in readings
        for number in numbers
        for method in METHODS
        if method != "fedavg" or reading == THEOREM  # it distils nothing, so there is nothing to read otherwise
    ]
    found = []
    with ProcessPoolExecutor(jobs) as pool:
        for row in pool.map(cell, *zip(*cells, strict=True)):
            print(
                f"{row['reading']:30} {row['setting']:>2} {row['method']:9} gap {row['first_gap']:.1e} → "
                f"{row['last_gap']:.1e} under {row['last_bound']:.1e}, at most {row['largest_share']:.3f} of it",
                flush=True,
            )
            found.append(row)
    return found


def about(command: str) -> None:
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    facts = {
        "command": command,
        "commit": here.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("headwater", "numpy", "scipy")},
    }
    (HERE / "machine.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def follow(seeds: int) -> list[dict[str, Any]]:
    """One setting for long, with the theorems' stopping and without it."""
    setting = replace(Setting.draw(LONG), rounds=ROUNDS)
    federation, rows = Federation(setting), []
    for reading in (THEOREM, "stopping looks at labels", "no stopping"):
        for method in METHODS[1:]:
            trace = Process(federation, method, seeds, replace(READINGS[reading], looks=400)).run()
            mean, over = trace.gaps.mean(axis=0), bounds(trace, setting, federation)
            above = np.flatnonzero(mean[1:] > over[1:])
            first = int(above[0]) + 1 if len(above) else 0
            print(f"{reading:30} {method:9} gap {mean[-1]:.1e}, bound {over[-1]:.1e}, above from {first or '-'}")
            shown = np.unique(np.geomspace(1, ROUNDS, 120).astype(int))
            rows += [
                {"reading": reading, "method": method, "round": int(t), "gap": mean[t], "bound": over[t]}
                | {"above_from": first}
                for t in shown
            ]
    return rows


def fill(name: str, made: str) -> None:
    page = DOCS / "theory.md"
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if begin not in text or end not in text:
        sys.exit(f"{page} has no place for {name}: it needs the lines {begin.strip()} and {end}")
    before, _, rest = text.partition(begin)
    page.write_text(f"{before}{begin}{made}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def summary(rows: list[dict[str, Any]]) -> str:
    """By method, over all settings: the largest share of its bound that a mean gap came to, and under what else."""
    heads = ["method", "bound", "settings under it", "largest share of it", "of one seed", "of the lowest reading"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    numbers = {"fedavg": "(24)", "fedhead": "(6)", "fedhead+": "(26)", "feddf": "(32)"}
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        under = sum(row["largest_share"] <= 1 for row in mine)
        most = [max(row[k] for row in mine) for k in ("largest_share", "largest_of_one_seed", "largest_under_lowest")]
        shares = " | ".join(f"{value:.2g}" for value in most)
        lines.append(f"| {method} | {numbers[method]} | {under} of {len(mine)} | {shares} |")
    return "\n".join(lines)


def readings(rows: list[dict[str, Any]]) -> str:
    heads = ["reading", "largest share of the bound", "median last gap", "median share of n_s and n_g that is taken"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lengths = {number: Setting.draw(number) for number in SETTINGS}
    for reading in READINGS:
        mine = [row for row in rows if row["reading"] == reading and row["method"] != "fedavg"]
        taken = [row["sector_mean"] / lengths[row["setting"]].sector for row in mine if row["method"] != "feddf"]
        taken += [row["server_mean"] / lengths[row["setting"]].server for row in mine if row["method"] != "fedhead"]
        most, last = max(row["largest_share"] for row in mine), np.median([row["last_gap"] for row in mine])
        lines.append(f"| {reading} | {most:.2g} | {last:.1e} | {np.median(taken):.2f} |")
    return "\n".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    """Every setting: what was drawn, and each method's largest share of its bound."""
    heads = [
        "setting",
        "N",
        "M",
        "features",
        "classes",
        "α",
        "μ",
        "κ",
        "batch",
        "n_l",
        "n_s",
        "n_g",
        "rounds",
        *METHODS,
    ]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for number in sorted({row["setting"] for row in rows}):
        s, mine = Setting.draw(number), {row["method"]: row for row in rows if row["setting"] == number}
        drawn = [number, s.clients, s.sectors, s.features, s.classes, s.alpha, s.decay]
        drawn += [f"{mine['fedavg']['condition']:.0f}", s.batch, s.local, s.sector, s.server, s.rounds]
        shares = [f"{mine[method]['largest_share']:.1g}" for method in METHODS]
        lines.append(f"| {' | '.join(map(str, [*drawn, *shares]))} |")
    return "\n".join(lines) + "\n"


def long_table(rows: list[dict[str, Any]]) -> str:
    heads = ["reading", "method", f"gap after {ROUNDS} rounds", "bound there", "above the bound from round"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        if row["round"] == ROUNDS:
            since = row["above_from"] or "never"
            lines.append(f"| {row['reading']} | {row['method']} | {row['gap']:.1e} | {row['bound']:.1e} | {since} |")
    return "\n".join(lines)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seeds", type=int, default=10)
    asked.add_argument("--jobs", type=int, default=1)
    asked.add_argument("--settings", default="")
    asked.add_argument("--long", action="store_true")
    given = asked.parse_args()
    if given.long:
        rows = follow(given.seeds)
        write(HERE / "long.csv", ["reading", "method", "round", "gap", "bound", "above_from"], rows)
        pictures.stopping(rows, HERE / "stopping.png")
        fill("long", long_table(rows))
        return
    numbers = [int(number) for number in given.settings.split(",")] if given.settings else [*SETTINGS]
    found = all_cells(numbers, [THEOREM], given.seeds, given.jobs)
    above = [f"setting {r['setting']}, {r['method']}: above its bound" for r in found if r["largest_share"] > 1]
    if not given.settings:
        others = all_cells(numbers, [*READINGS][1:], given.seeds, given.jobs)
        write(HERE / "obtained.csv", COLUMNS, found)
        write(HERE / "readings.csv", READ, found + others)
        curves = [
            {"setting": row["setting"], "method": row["method"], "round": t, "gap": float(gap), "bound": float(bound)}
            for row in found
            for t, gap, bound in row["curve"]
        ]
        write(HERE / "curves.csv", ["setting", "method", "round", "gap", "bound"], curves)
        (HERE / "table.md").write_text(table(found), encoding="utf-8")
        pictures.bounds(found, HERE / "bounds.png")
        fill("bounds", summary(found))
        fill("readings", readings(found + others))
        about("python experiments/theory_bounds/run.py (long.csv: the same with --long)")
    sys.exit("\n".join(above) or 0)


if __name__ == "__main__":
    main()
