"""How near `headwater plan` comes: planned time and memory beside those of the run.

    python benchmarks/plan_accuracy.py [NAME …] [--repeats 3] [--out FILE.json] [--anew]

Each setting is planned and run in processes of its own, by turns. The time is that of the run itself, from the first
task to the last file (`seconds` in result.json), which is what a plan predicts; the memory is the largest sum of the
proportional set sizes of all its processes. Writes plan_accuracy.json and plan_accuracy.md after every turn; the same
command on the same machine and commit carries on where it stopped. `others` is how many threads of other programs
wanted a core while a setting was planned and run: where it is above a half, the row does not speak of an idle machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tools"))
WANTED = 0.30  # how far a time may be off on an idle machine
IDLE = 0.5  # threads of other programs
TABLE = "table.csv"
Row = dict[str, Any]
CNN_PACK = ("data.name=fashion_mnist", "data.fraction=0.1", "model.name=cnn", "local.epochs=2", "rounds=4")
CIFAR = ("data.name=cifar10", "data.fraction=0.04", "model.name=resnet8", "partition.clients=8", "local.epochs=1")
INLINE, POOL = "engine.name=inline", "engine.name=pool"
SETTINGS: dict[str, tuple[str, ...]] = {
    "digits, MLP, FedAvg, inline": ("fedavg", "model.name=mlp", "rounds=20", INLINE),
    "digits, MLP, FedHEAD, inline": ("fedhead", "model.name=mlp", "rounds=10", INLINE),
    "digits, MLP, FedAvg, 500 clients, inline": (
        "fedavg",
        "model.name=mlp",
        "partition.clients=500",
        "partition.participation=0.2",
        "rounds=10",
        INLINE,
    ),
    "digits, CNN, FedAvg, inline": ("fedavg", "model.name=cnn", "local.epochs=3", "rounds=4", INLINE),
    "digits, CNN, FedHEAD, pool": (
        "fedhead",
        "model.name=cnn",
        "local.epochs=3",
        "sector.epochs=3",
        "sector.patience=none",
        "rounds=6",
        POOL,
    ),
    "Fashion-MNIST, CNN, FedAvg, inline": ("fedavg", *CNN_PACK, INLINE),
    "Fashion-MNIST, CNN, FedAvg, pool": ("fedavg", *CNN_PACK, POOL),
    "CIFAR-10, ResNet-8, FedAvg, inline": ("fedavg", *CIFAR, "rounds=2", INLINE),
    "CIFAR-10, ResNet-8, FedDF, pool": (
        "feddf",
        *CIFAR,
        "data.reference_size=300",
        "server.epochs=2",
        "server.patience=none",
        "rounds=3",
        POOL,
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


def headwater(*words: str, folder: Path) -> tuple[Row, int, float]:
    """The JSON answer of a command, the most memory of its processes together, and how many others wanted a core."""
    from process_tree import descendants

    command = [sys.executable, "-m", "headwater", *words, "--json", "--quiet"]
    most, looks = 0, []
    with (folder / "answer.json").open("w+") as answer, (folder / "errors.txt").open("w+") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=answer, stderr=errors)
        while process.poll() is None:
            family = (process.pid, *(pid for pid, _ in descendants(process.pid)))
            most = max(most, sum(map(_pss, family)))
            looks.append(max(0, _running() - 1 - sum(map(_wants_a_core, family))))
            time.sleep(0.1)
        answer.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(words)}: {errors.read().strip()}")
        return json.load(answer), most, statistics.fmean(looks) if looks else 0.0


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    except OSError:  # it has ended
        return 0


def _running() -> int:
    """Threads of this machine that run or want to, this one included."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("procs_running")), 1)


def _wants_a_core(pid: int) -> int:
    """Threads of a process that run or want to."""
    count = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            count += stat.read_text().rpartition(")")[2].split()[0] == "R"
        except OSError:
            continue
    return count


def turn(name: str) -> Row:
    """Plan and run one setting once."""
    words = command_of(name)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if any(TABLE in word for word in words):
            write_table(folder / TABLE)
        planned, _, before = headwater("plan", *words, folder=folder)
        run, memory, meanwhile = headwater("run", *words, "--out", "run", folder=folder)
    others = max(before, meanwhile)
    return {
        "others": round(others, 2),
        "planned_seconds": round(planned["seconds"]["idle" if others < IDLE else "total"], 3),
        "planned_load": round(planned["measured"]["load"], 2),
        "seconds": round(run["seconds"], 3),
        "at_most": any(step["stops"] for step in planned["steps"] or ()),
        "planned_memory": planned["memory"]["total"],
        "memory": memory,
        "engine": f"{planned['engine']['name']} × {planned['engine']['workers']}",
    }


def command_of(name: str) -> list[str]:
    """The words after `headwater plan` and `headwater run`."""
    method, *pairs = SETTINGS[name]
    return [method, *(word for pair in pairs for word in ("--set", pair))]


def summary(name: str, turns: Sequence[Row]) -> Row:
    """One setting: its command, the medians of its turns, and the turns."""
    time_ratio = statistics.median(each["planned_seconds"] / max(each["seconds"], 1e-3) for each in turns)
    memory_ratio = statistics.median(each["planned_memory"] / max(each["memory"], 1) for each in turns)
    far = abs(time_ratio - 1) > WANTED and not (turns[0]["at_most"] and time_ratio >= 1)
    return {
        "name": name,
        "command": f"headwater run {' '.join(command_of(name))}",
        "time_ratio": round(time_ratio, 3),
        "within": not far,
        "idle": max(each["others"] for each in turns) < IDLE,
        "memory_ratio": round(memory_ratio, 3),
        "turns": list(turns),
    }


def markdown(found: Row) -> str:
    """The table for people."""
    rows = found["rows"]
    near, quiet = sum(row["within"] for row in rows), sum(row["idle"] for row in rows)
    lines = [
        "# How near `headwater plan` comes",
        "",
        f"Written by `{found['command']}` on {found['date']} at commit {found['commit']}: {found['machine']}. Planned "
        "beside measured, medians over turns; a ratio above 1 means that the plan was too careful. With early stopping "
        f"(≤) a plan is an upper bound. Wanted: a time within {WANTED:.0%} on an idle machine.",
        "",
        f"{near} of {len(rows)} settings are within {WANTED:.0%}; {quiet} of {len(rows)} were measured on an idle "
        f"machine (fewer than {IDLE:g} threads of other programs wanted a core).",
        "",
        "| setting | engine | planned s | measured s | ratio | within | planned MB | measured MB | ratio | others |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        turns = row["turns"]

        def middle(key: str, turns: Sequence[Row] = turns) -> float:
            return statistics.median(each[key] for each in turns)

        cells = [
            row["name"],
            turns[0]["engine"],
            f"{'≤ ' if turns[0]['at_most'] else ''}{middle('planned_seconds'):.3g}",
            f"{middle('seconds'):.3g}",
            f"{row['time_ratio']:.2f}",
            "yes" if row["within"] else "NO",
            f"{middle('planned_memory') / 1e6:.0f}",
            f"{middle('memory') / 1e6:.0f}",
            f"{row['memory_ratio']:.2f}",
            f"{max(each['others'] for each in turns):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    commands = [f"* {row['name']}: `{row['command']}`" for row in rows]
    return "\n".join([*lines, "", "The settings:", "", *commands]) + "\n"


def known(file: Path, where: Row) -> dict[str, list[Row]]:
    """Turns of an earlier call on this machine and at this commit, by setting."""
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if any(before.get(key) != where[key] for key in ("commit", "machine")):
        return {}
    rows = {row["name"]: row for row in before["rows"]}
    return {
        name: row["turns"]
        for name, row in rows.items()
        if name in SETTINGS and row["command"] == f"headwater run {' '.join(command_of(name))}"
    }


def write(out: Path, where: Row, repeats: int, turns: dict[str, list[Row]]) -> Row:
    """Write both files as they are now."""
    rows = [summary(name, turns[name]) for name in SETTINGS if turns.get(name)]
    found = {"command": "make bench-plan", **where, "repeats": repeats, "rows": rows}
    for path, text in ((out, json.dumps(found, indent=1) + "\n"), (out.with_suffix(".md"), markdown(found))):
        draft = path.with_name(f".{path.name}.draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {'; '.join(SETTINGS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "plan_accuracy.json")
    parser.add_argument("--anew", action="store_true", help="measure again what an earlier call has measured")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in SETTINGS]
    if unknown or given.repeats < 1:
        parser.error(f"no setting is called {unknown[0]!r}" if unknown else "--repeats must be at least 1")
    where = record.about()
    turns = {} if given.anew else known(given.out, where)
    found = {"rows": []}
    for at in range(given.repeats):  # by turns, so that a slow hour of the machine does not fall on one setting
        for name in given.names or SETTINGS:
            mine = turns.setdefault(name, [])
            if len(mine) <= at:
                mine.append(turn(name))
                print(f"{name}, turn {at + 1} of {given.repeats}: {mine[-1]}", file=sys.stderr, flush=True)
                found = write(given.out, where, given.repeats, turns)
    print(markdown(found) if found["rows"] else f"{given.out} has all of this already; measure again with --anew")


if __name__ == "__main__":
    main()
