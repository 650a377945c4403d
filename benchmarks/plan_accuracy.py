"""How near `headwater plan` comes: planned time and memory beside those of the run.

    python benchmarks/plan_accuracy.py [NAME …] [--repeats 3] [--out FILE.json]

Each setting is planned and run in processes of its own, by turns. The time is that of the run itself, from the first
task to the last file (`seconds` in result.json), which is what a plan predicts; the memory is the largest sum of the
proportional set sizes of all its processes. Writes plan_accuracy.json and plan_accuracy.md. On a machine that does
something else at the same time the table says so: `load` is how many other processes wanted a core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tools"))
WANTED = 0.30  # how far a time may be off on an idle machine
TABLE = "table.csv"
SETTINGS: dict[str, tuple[str, ...]] = {
    "digits, MLP, FedAvg": ("fedavg", "rounds=20"),
    "digits, MLP, FedHEAD": ("fedhead", "rounds=10"),
    "Fashion-MNIST, CNN, FedAvg": (
        "fedavg",
        "data.name=fashion_mnist",
        "data.fraction=0.1",
        "model.name=cnn",
        "local.epochs=2",
        "rounds=5",
    ),
    "CIFAR-10, ResNet-8, FedDF": (
        "feddf",
        "data.name=cifar10",
        "data.fraction=0.04",
        "data.reference_size=300",
        "model.name=resnet8",
        "partition.clients=8",
        "local.epochs=1",
        "server.epochs=2",
        "rounds=3",
    ),
    "table, MLP, FedProx": ("fedprox", f"data.name={TABLE}", "data.label=outcome", "rounds=20"),
}


def write_table(path: Path) -> None:
    """A table of 6 000 rows with 12 columns of numbers."""
    draw = random.Random(0)
    lines = [",".join([*(f"x{n}" for n in range(12)), "outcome"])]
    for at in range(6000):
        values = [f"{draw.gauss((at % 3) * (n % 2), 1):.4f}" for n in range(12)]
        lines.append(",".join([*values, str(at % 3)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def headwater(*words: str, folder: Path) -> tuple[dict[str, Any], int]:
    """The JSON answer of a command, and the most memory that its processes had together, in bytes."""
    from process_tree import descendants

    command = [sys.executable, "-m", "headwater", *words, "--json", "--quiet"]
    most = 0
    with (folder / "answer.json").open("w+") as answer, (folder / "errors.txt").open("w+") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=answer, stderr=errors)
        while process.poll() is None:
            most = max(most, sum(_pss(pid) for pid in (process.pid, *(pid for pid, _ in descendants(process.pid)))))
            time.sleep(0.1)
        answer.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(words)}: {errors.read().strip()}")
        return json.load(answer), most


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    except OSError:  # it has ended
        return 0


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Plan and run one setting by turns."""
    method, *pairs = SETTINGS[name]
    words = [method, *(word for pair in pairs for word in ("--set", pair))]
    turns = []
    for turn in range(repeats):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            if any(TABLE in pair for pair in pairs):
                write_table(folder / TABLE)
            load = os.getloadavg()[0]
            planned, _ = headwater("plan", *words, folder=folder)
            run, memory = headwater("run", *words, "--out", "run", folder=folder)
        turns.append(
            {
                "load": round(load, 1),
                "planned_seconds": round(planned["seconds"]["total"], 2),
                "seconds": round(run["seconds"], 2),
                "at_most": any(step["stops"] for step in planned["steps"] or ()),
                "planned_memory": planned["memory"]["total"],
                "memory": memory,
                "engine": planned["engine"]["name"],
            }
        )
        print(f"{name}, turn {turn + 1} of {repeats}: {turns[-1]}", file=sys.stderr, flush=True)
    ratio = statistics.median(each["planned_seconds"] / each["seconds"] for each in turns)
    room = statistics.median(each["planned_memory"] / each["memory"] for each in turns)
    command = f"headwater run {' '.join(words)}"
    return {
        "name": name,
        "command": command,
        "time_ratio": round(ratio, 3),
        "memory_ratio": round(room, 3),
        "turns": turns,
    }


def markdown(found: dict[str, Any]) -> str:
    """The table for people."""
    lines = [
        "# How near `headwater plan` comes",
        "",
        f"Written by `{found['command']}` on {found['date']} at commit {found['commit']}: {found['machine']}. Planned "
        "beside measured, medians over turns; a ratio above 1 means that the plan was too careful. With early stopping "
        f"a plan is an upper bound. Wanted: a time within {WANTED:.0%} on an idle machine.",
        "",
        "| setting | engine | planned s | measured s | ratio | within | planned MB | measured MB | ratio | load |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        turns = row["turns"]

        def middle(key: str, turns: list[dict[str, Any]] = turns) -> float:
            return statistics.median(each[key] for each in turns)

        off = abs(row["time_ratio"] - 1) <= WANTED or (turns[0]["at_most"] and row["time_ratio"] >= 1 - WANTED)
        cells = [
            row["name"],
            turns[0]["engine"],
            f"{'≤ ' if turns[0]['at_most'] else ''}{middle('planned_seconds'):.3g}",
            f"{middle('seconds'):.3g}",
            f"{row['time_ratio']:.2f}",
            "yes" if off else "NO",
            f"{middle('planned_memory') / 1e6:.0f}",
            f"{middle('memory') / 1e6:.0f}",
            f"{row['memory_ratio']:.2f}",
            f"{middle('load'):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {'; '.join(SETTINGS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "plan_accuracy.json")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in SETTINGS]
    if unknown or given.repeats < 1:
        parser.error(f"no setting is called {unknown[0]!r}" if unknown else "--repeats must be at least 1")
    where = record.about()
    rows = [measure(name, given.repeats) for name in given.names or SETTINGS]
    found = {"command": "make bench-plan", **where, "repeats": given.repeats, "rows": rows}
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    given.out.with_suffix(".md").write_text(markdown(found), encoding="utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main()
