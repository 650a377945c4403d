"""One round from the same model: what averaging, distilling at leaders and teaching by all twenty make of it.

    python experiments/evidence/probe.py --seeds 0 [--out runs/evidence/probe]

The setting is that of experiments/cifar10_resnet8. FedAvg trains up to just before each probed round; every method
then trains one round from that model, with the same local trainings. Cells that are in probe_obtained.csv are kept.
Accuracies are those of the test set, and of the validation set where a name begins with `validation_`.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from headwater.config import Config
from headwater.training.experiment import prepare
from headwater.training.loop import train

HERE = Path(__file__).parent
BASE = HERE.parent / "cifar10_resnet8" / "base.toml"
ROUNDS = (1, 5, 10)
DISTIL = {"epochs": 10, "batch": 32, "optimizer": "adam", "lr": 1e-3, "weight_decay": 1e-4, "patience": 5}
AS_HEAD = {"mix": "probs", "weights": "samples", "schedule": "constant", "clip": "none", "metric": "loss"}
KEPT, LAST = DISTIL | {"restore": "best_or_init"}, DISTIL | {"restore": "last"}
METHODS: dict[str, dict[str, Any]] = {
    "feddf": {
        "algorithm": {"name": "feddf", "drop_worst": False, "before_fusion": True},
        "server": KEPT | AS_HEAD,
    },
    "fedhead": {"algorithm": {"name": "fedhead"}, "sector": KEPT},
    "fedhead-last": {"algorithm": {"name": "fedhead"}, "sector": LAST},
    "fedhead+": {"algorithm": {"name": "fedhead+"}, "sector": KEPT, "server": KEPT},
}
COLUMNS = ("seed", "round", "method", "average", "teachers", "after")
COLUMNS += ("validation_teachers", "validation_before", "validation_after", "model_sha256")
Row = dict[str, str]


def trained(changes: dict[str, Any], seed: int, rounds: int, start: Path | None, out: Path) -> dict[str, Any]:
    """The last row of a run and its model's hash; what is finished is read, what was stopped carries on."""
    if not (out / "result.json").is_file():
        begin = {"model__start": str(start)} if start else {}
        direct = {"seed": seed, "rounds": rounds, "eval_every": rounds, "engine__name": "inline", **begin}
        train(prepare(Config.load(BASE, [], **direct).merged(changes)), out=out)
    last = (out / "rounds.jsonl").read_text(encoding="utf-8").strip().splitlines()[-1]
    return json.loads(last) | {"sha": json.loads((out / "result.json").read_text(encoding="utf-8"))["model_sha256"]}


def start_for(probed: int, seed: int, out: Path) -> Path | None:
    """FedAvg's model just before a round; the way from one probed round to the next is a run of its own."""
    if probed == 1:
        return None
    before = max(each for each in ROUNDS if each < probed)
    start = start_for(before, seed, out)
    place = out / f"seed-{seed}" / f"before-{probed}"
    trained({"algorithm": {"name": "fedavg"}}, seed, probed - before, start, place)
    return place


def probe(method: str, probed: int, seed: int, out: Path) -> Row:
    place = out / f"seed-{seed}" / f"round-{probed}-{method}"
    row = trained(METHODS[method], seed, 1, start_for(probed, seed, out), place)
    keys = ("average_accuracy", "ensemble_accuracy", "accuracy", "teacher_accuracy", "student_before", "student_after")
    found = [f"{row[key]:.4f}" if row.get(key) is not None else "" for key in keys]
    return dict(zip(COLUMNS, (str(seed), str(probed), method, *found, row["sha"]), strict=True))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--out", type=Path, default=Path("runs/evidence/probe"))
    given = asked.parse_args()
    path = HERE / "probe_obtained.csv"
    rows: list[Row] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    known = {(row["seed"], row["round"], row["method"]) for row in rows}
    cells = [(s, r, m) for s in given.seeds.split(",") for r in ROUNDS for m in METHODS]
    for seed, probed, method in cells:
        if (seed, str(probed), method) not in known:
            rows.append(probe(method, probed, int(seed), given.out))
            print(*list(rows[-1].values())[:-1], flush=True)
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            write_machine(",".join(sorted({row["seed"] for row in rows})))


def write_machine(seeds: str) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": f"python experiments/evidence/probe.py --seeds {seeds}",
        "commit": commit.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, shared with other work; times are not a benchmark",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    (HERE / "probe.machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
