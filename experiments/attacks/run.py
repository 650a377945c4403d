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
from dataclasses import dataclass, field
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
RULES = ("none", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "norm-bound")
ALONE = ("none", "sign-flip", "backdoor")
ON_CLIENTS = ("none", "label-flip", "sign-flip", "scale", "gaussian", "backdoor")


@dataclass(frozen=True)
class Row:
    """A method with settings of its own, what attacks it, and the rules that are tried."""

    method: str
    attacks: tuple[str, ...]
    rules: tuple[str, ...] = RULES
    settings: dict[str, Any] = field(default_factory=dict)


# By default FedDF leaves out teachers that are at a guess on the validation set, and FedDF and FedHEAD give the start
# back where no student is better there. Without either, what remains is distillation by itself.
UNJUDGED = {"server__restore": "last", "algorithm__drop_worst": False}
ROWS = {
    "fedavg": Row("fedavg", ON_CLIENTS),
    "hfedavg": Row("hfedavg", (*ON_CLIENTS, "lying-host")),
    "feddf": Row("feddf", ON_CLIENTS),
    "fedhead": Row("fedhead", (*ON_CLIENTS, "lying-leader", "lying-host")),
    "feddf, unjudged": Row("feddf", ALONE, ("none",), UNJUDGED),
    "feddf, unjudged, teachers by agreement": Row(
        "feddf", ALONE, ("none",), UNJUDGED | {"server__weights": "agreement"}
    ),
    "fedhead, unjudged": Row("fedhead", (*ALONE, "lying-leader"), ("none",), {"sector__restore": "last"}),
    "hfedavg, 5 sectors": Row("hfedavg", ("none", "lying-host"), settings={"sectors": 5}),
    "fedhead, 5 sectors": Row("fedhead", ("none", "lying-host"), settings={"sectors": 5}),
}
COLUMNS = ("method", "attack", "rule", "seed", "accuracy", "attack_success", "model_sha256")
Cell = dict[str, str]


def measured(name: str, attack: str, rule: str, seed: int) -> Cell:
    row = ROWS[name]
    rules = {"robust__sector": rule, "robust__server": rule}
    run = hw.run(row.method, **BASE | row.settings, **rules, seed=seed, attack__kind=attack, progress=False)
    success = run.result.get("attack_success")
    numbers = (f"{run.accuracy:.4f}", "" if success is None else f"{success:.4f}", run.result["model_sha256"])
    return dict(zip(COLUMNS, (name, attack, rule, str(seed), *numbers), strict=True))


def table(rows: list[Cell]) -> str:
    """Accuracy in percent, mean over seeds; with a backdoor also how often the patch works."""
    lines = [f"| method | attack | {' | '.join(RULES)} |", f"|---|---|{'---|' * len(RULES)}"]
    for method, row in ROWS.items():
        for attack in row.attacks:
            cells = []
            for rule in RULES:
                found = [
                    each for each in rows if (each["method"], each["attack"], each["rule"]) == (method, attack, rule)
                ]
                text = f"{100 * fmean(float(each['accuracy']) for each in found):.1f}" if found else ""
                if attack == "backdoor" and found:
                    text += f" (patch {100 * fmean(float(each['attack_success']) for each in found):.0f})"
                cells.append(text)
            lines.append(f"| {method} | {attack} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--into", type=Path, default=HERE)
    given = asked.parse_args()
    path = given.into / "obtained.csv"
    rows: list[Cell] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    known = {tuple(row[key] for key in COLUMNS[:4]) for row in rows}
    seeds = given.seeds.split(",")
    cells = [(n, a, r, s) for s in seeds for n, row in ROWS.items() for a, r in product(row.attacks, row.rules)]
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
