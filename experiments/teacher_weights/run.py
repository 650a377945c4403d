"""Five ways to weigh teachers in FedDF, FedHEAD and FedEED, at two label skews, three seeds each.

    python experiments/teacher_weights/run.py --out runs/teacher_weights [--jobs 2] [--seeds 0,1,2] [--rounds 5]

Two cells run at a time, each in a process of its own on the inline engine. Finished cells are kept, a stopped one
carries on. `collect.py` beside this file turns the run directories into the committed tables.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WEIGHTS = ("samples", "uniform", "labels", "confidence", "learned")
ALPHAS = ("0.1", "1")
# Alike for all three, so that only who teaches whom differs; nothing is restored, so that the student shows what it was
# taught.
DISTIL = {"epochs": 10, "batch": 32, "optimizer": "adam", "lr": 1e-3, "schedule": "constant", "clip": "none"} | {
    "mix": "probs",
    "temperature": 1.0,
    "t2": False,
    "metric": "loss",
    "patience": "none",
    "restore": "last",
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {  # the section that distils, and the method's own options
    "feddf": ("server", {"drop_worst": False}),
    "fedhead": ("sector", {}),
    "fedeed": ("server", {"cohorts": 4}),
}
Cell = tuple[str, str, str, str]  # method, weights, alpha, seed


def folder(out: Path, cell: Cell) -> Path:
    method, weights, alpha, seed = cell
    return out / method / weights / f"alpha-{alpha}" / f"seed-{seed}"


def run(cell: Cell, out: Path, rounds: int) -> None:
    """Train one cell in this process."""
    from headwater.config import Config
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    method, weights, alpha, seed = cell
    section, options = METHODS[method]
    config = Config.load(HERE / "base.toml", [], seed=int(seed), rounds=rounds, engine__name="inline").merged(
        {
            "partition": {"alpha": float(alpha)},
            "algorithm": {"name": method, **options},
            section: DISTIL | {"weights": weights},
        }
    )
    found = train(prepare(config), out=folder(out, cell))
    print(*cell, f"{found.accuracy:.3f}", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, default=Path("runs/teacher_weights"))
    asked.add_argument("--jobs", type=int, default=2)
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--cell", nargs=4, metavar=("METHOD", "WEIGHTS", "ALPHA", "SEED"), help="only this one")
    given = asked.parse_args()
    if given.cell:
        return run(tuple(given.cell), given.out, given.rounds)
    every = [(m, w, a, s) for s in given.seeds.split(",") for a in ALPHAS for m in METHODS for w in WEIGHTS]
    cells = [cell for cell in every if not (folder(given.out, cell) / "result.json").exists()]

    def start(cell: Cell) -> int:
        options = ["--out", str(given.out), "--rounds", str(given.rounds), "--cell", *cell]
        return subprocess.run([sys.executable, __file__, *options], check=False).returncode

    with ThreadPoolExecutor(given.jobs) as pool:
        failed = [cell for cell, code in zip(cells, pool.map(start, cells), strict=True) if code]
    print("failed:", failed) if failed else print("done:", given.out)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
