"""What attacks do to methods with and without a robust rule: Fashion-MNIST, a small perceptron, three seeds.

    python experiments/attacks/run.py [--seeds 0,1,2] [--into experiments/attacks]

Rows that are in obtained.csv already are kept, so a run that was stopped carries on. Writes obtained.csv (a row a
cell), table.md (means over seeds) and machine.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import headwater as hw

HERE = Path(__file__).parent
# 3 000 images; every fifth client attacks. Nothing below was chosen by a test accuracy: sizes are those of the
# experiment on teacher weights, strengths are the defaults of [attack].
BASE: dict[str, Any] = {
    "data": "fashion_mnist",
    "data__fraction": 0.05,
    "model": "mlp",
    "clients": 20,
    "sectors": 2,
    "alpha": 1.0,
    "rounds": 10,
    "eval_every": 10,
    "local__epochs": 5,
    "local__optimizer": "adam",
    "local__lr": 1e-3,
}
RULES = ("none", "median", "multi-krum", "norm-bound")
ON_CLIENTS = ("none", "label-flip", "sign-flip", "scale", "gaussian", "backdoor")
METHODS = {
    "fedavg": ON_CLIENTS,
    "hfedavg": (*ON_CLIENTS, "lying-host"),
    "feddf": ON_CLIENTS,
    "fedhead": (*ON_CLIENTS, "lying-leader", "lying-host"),
}
COLUMNS = ("method", "attack", "rule", "seed", "accuracy", "attack_success", "model_sha256")
Row = dict[str, str]


def measured(method: str, attack: str, rule: str, seed: int) -> Row:
    run = hw.run(
        method, **BASE, seed=seed, attack__kind=attack, robust__sector=rule, robust__server=rule, progress=False
    )
    success = run.result.get("attack_success")
    numbers = (f"{run.accuracy:.4f}", "" if success is None else f"{success:.4f}", run.result["model_sha256"])
    return dict(zip(COLUMNS, (method, attack, rule, str(seed), *numbers), strict=True))


def table(rows: list[Row]) -> str:
    """Accuracy in percent, mean over seeds; with a backdoor also how often the patch works."""
    lines = [f"| method | attack | {' | '.join(RULES)} |", f"|---|---|{'---|' * len(RULES)}"]
    for method, attacks in METHODS.items():
        for attack in attacks:
            cells = []
            for rule in RULES:
                found = [row for row in rows if (row["method"], row["attack"], row["rule"]) == (method, attack, rule)]
                text = f"{100 * fmean(float(row['accuracy']) for row in found):.1f}" if found else ""
                if attack == "backdoor" and found:
                    text += f" (patch {100 * fmean(float(row['attack_success']) for row in found):.0f})"
                cells.append(text)
            lines.append(f"| {method} | {attack} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--into", type=Path, default=HERE)
    given = asked.parse_args()
    path = given.into / "obtained.csv"
    rows: list[Row] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    known = {tuple(row[key] for key in COLUMNS[:4]) for row in rows}
    cells = [(m, a, r, s) for s in given.seeds.split(",") for m in METHODS for a, r in product(METHODS[m], RULES)]
    for at, (method, attack, rule, seed) in enumerate(cells, 1):
        if (method, attack, rule, seed) not in known:
            rows.append(measured(method, attack, rule, int(seed)))
            print(f"{at}/{len(cells)}", *list(rows[-1].values())[:6], flush=True)
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    (given.into / "table.md").write_text(table(rows), encoding="utf-8")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": f"python experiments/attacks/run.py --seeds {given.seeds}",
        "commit": commit.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, shared with other work; times are not a benchmark",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    (given.into / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
