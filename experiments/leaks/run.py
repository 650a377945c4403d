"""What server, hosts and leaders learn by simple attacks, with and without protection: Fashion-MNIST, three seeds.

    python experiments/leaks/run.py [--seeds 0,1,2] [--into experiments/leaks]

Cells that are in obtained.csv already are kept, so a run that was stopped carries on. Writes obtained.csv (a row for
each kind of model that a kind of party held), table.md (means over seeds) and machine.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from headwater.audit.attacker import ANALYTIC, MEMBERSHIP, SEARCH
from headwater.audit.membership_inference import Membership
from headwater.audit.probe import Finding, Resemblance, probe
from headwater.config import Config
from headwater.errors import UserError
from headwater.training.experiment import prepare

sys.path.append(str(Path(__file__).parent.parent.parent / "tools"))
import leak_tables

HERE = Path(__file__).parent

# 1 200 images, 84 or so at a client. Nothing below was chosen by a result: sizes are small so that a model can learn
# rows by heart, and the whole takes minutes.
BASE: dict[str, Any] = {
    "data__name": "fashion_mnist",
    "data__fraction": 0.02,
    "data__test_fraction": 0.1,
    "model__name": "mlp",
    "model__hidden": [64],
    "partition__clients": 10,
    "partition__sectors": 2,
    "partition__assign": "balanced",
    "partition__alpha": 1.0,
    "eval_every": 5,
    "local__optimizer": "sgd",
    "local__lr": 0.1,
    "engine__name": "inline",
}
SETTINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "trained": ({"rounds": 5, "local__epochs": 5, "local__batch": 16}, (MEMBERSHIP, ANALYTIC)),
    "one row": ({"rounds": 1, "local__steps": 1, "local__batch": 1}, (ANALYTIC, SEARCH)),
}
WITHOUT_UPDATES = ("fedproto", "fedmd")  # send no model in rounds, so nothing comes of the second setting
SEARCHED = ("fedavg", "hfedavg", "fedhead")  # a search takes the most time; what others send is of the same kind
LOUD, LOUD_FOR = "noise = 1", ("fedavg", "hfedavg")  # it leaves nothing of a model
PROTECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "secure = sectors": {"privacy__secure": "sectors"},
    "secure = server": {"privacy__secure": "server"},
    "secure = both": {"privacy__secure": "both"},
    "noise = 0.02": {"privacy__clip": 1.0, "privacy__noise": 0.02},
    "noise = 1": {"privacy__clip": 1.0, "privacy__noise": 1.0},
    "row_noise = 1": {"privacy__row_clip": 1.0, "privacy__row_noise": 1.0},
}
METHODS = ("fedavg", "hfedavg", "fedhead", "feddf", "fedeed", "mtgc", "fedhkd", "fedproto", "fedmd")
CLIENTS, INVERTED = 5, 2
CELL = ("setting", "method", "protection", "seed")
COLUMNS = (*CELL, "accuracy", "party", "whose", "when", "part", "models", "started", *leak_tables.NUMBERS, "note")
Row = dict[str, str]


def measured(setting: str, method: str, protection: str, seed: int) -> Iterator[Row]:
    """A row for each finding; one with a note for a refusal, and for a party that held no model."""
    cell = dict(zip(CELL, (setting, method, protection, str(seed)), strict=True))
    keys, attacks = SETTINGS[setting]
    attacks = tuple(attack for attack in attacks if attack != SEARCH or method in SEARCHED)
    try:
        config = Config.load(None, [], algorithm__name=method, seed=seed, **BASE, **keys, **PROTECTIONS[protection])
        found = probe(prepare(config), clients=CLIENTS, inverted=INVERTED, attacks=attacks, resamples=0)
    except UserError as error:
        yield cell | {"note": f"refused: {error}"}
        return
    cell["accuracy"] = f"{found.accuracy:.4f}"
    for finding in found.findings:
        whose = {"party": finding.role, "whose": finding.subject, "when": finding.purpose, "part": finding.part}
        yield cell | whose | numbers(finding)
    for role in found.without:
        yield cell | {"party": role, "note": "held no model with rows of others"}


def numbers(finding: Finding) -> Row:
    row = {"models": str(finding.models), "started": str(finding.started)}
    for name in ("loss", "calibrated"):
        told: Membership | None = getattr(finding, name)
        if told is not None:
            row |= {f"{name}_auc": f"{told.auc.value:.4f}", f"{name}_advantage": f"{told.advantage.value:.4f}"}
    for name in ("analytic", "searched"):
        seen: Resemblance | None = getattr(finding, name)
        if seen is not None:
            row |= {f"{name}_{key}": f"{getattr(seen, key):.4f}" for key in ("similarity", "control", "baseline")}
    return row


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
    known = {tuple(row[key] for key in CELL) for row in rows}
    cells = [(s, m, p, seed) for seed in given.seeds.split(",") for s in SETTINGS for m in METHODS for p in PROTECTIONS]
    cells = [cell for cell in cells if cell[0] == "trained" or cell[1] not in WITHOUT_UPDATES]
    cells = [cell for cell in cells if cell[2] != LOUD or cell[1] in LOUD_FOR]
    for at, (setting, method, protection, seed) in enumerate(cells, 1):
        if (setting, method, protection, seed) in known:
            continue
        new = list(measured(setting, method, protection, int(seed)))
        rows += new
        print(f"{at}/{len(cells)}", setting, method, protection, seed, f"{len(new)} rows", flush=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
            writer.writeheader()
            writer.writerows(rows)
    (given.into / "table.md").write_text(leak_tables.whole(path) + "\n", encoding="utf-8")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": f"python experiments/leaks/run.py --seeds {given.seeds}",
        "commit": commit.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, shared with other work; times are not a benchmark",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    (given.into / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
