"""FedAvg against FedHEAD (last and best_or_init), FedDF and FedHEAD+ on CIFAR-10 with ResNet-8, three seeds.

    python experiments/cifar10_resnet8/run.py --out runs/cifar10_resnet8 [--jobs 2] [--seeds 0,1,2]

Two cells run at a time, each in a process of its own on the inline engine. Finished cells are kept, a stopped one
carries on. `collect.py` beside this file turns the run directories into the committed tables.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
DISTIL = {"epochs": 10, "batch": 32, "optimizer": "adam", "lr": 1e-3, "weight_decay": 1e-4, "patience": 5}
VARIANTS = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "fedhead-last": {"algorithm": {"name": "fedhead"}, "sector": DISTIL | {"restore": "last"}},
    "fedhead-best_or_init": {"algorithm": {"name": "fedhead"}, "sector": DISTIL | {"restore": "best_or_init"}},
    "feddf": {
        "algorithm": {"name": "feddf", "drop_worst": False},
        "server": DISTIL
        | {"mix": "probs", "weights": "samples", "schedule": "constant", "metric": "loss"}
        | {"restore": "best_or_init"},
    },
    "fedhead+": {
        "algorithm": {"name": "fedhead+"},
        "sector": DISTIL | {"restore": "best_or_init"},
        "server": DISTIL | {"restore": "best_or_init"},
    },
}


def cell(variant: str, seed: int, out: Path) -> None:
    """Train one variant with one seed in this process."""
    from headwater.config import Config
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    config = Config.load(HERE / "base.toml", [], seed=seed, engine__name="inline").merged(VARIANTS[variant])
    train(prepare(config), out=out, watch=lambda e: print(variant, seed, e, flush=True) if e.kind == "round" else None)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, default=Path("runs/cifar10_resnet8"))
    asked.add_argument("--jobs", type=int, default=2)
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--cell", nargs=2, metavar=("VARIANT", "SEED"))
    given = asked.parse_args()
    if given.cell:
        variant, seed = given.cell
        return cell(variant, int(seed), given.out / variant / f"seed-{seed}")
    cells = [(variant, seed) for seed in given.seeds.split(",") for variant in VARIANTS]

    def start(one: tuple[str, str]) -> int:
        return subprocess.run(
            [sys.executable, __file__, "--out", str(given.out), "--cell", *one], check=False
        ).returncode

    with ThreadPoolExecutor(given.jobs) as pool:
        failed = [one for one, code in zip(cells, pool.map(start, cells), strict=True) if code]
    print("failed:", failed) if failed else print("done:", given.out)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
