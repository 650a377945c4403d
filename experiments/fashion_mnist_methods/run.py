"""All methods on Fashion-MNIST at alpha 0.1, three seeds, with learning rates chosen on data that is not the test set.

    python experiments/fashion_mnist_methods/run.py --out runs/fashion_mnist_methods [--jobs 2] [--seeds 0,1,2]

First the grid: every method trains GRID_ROUNDS rounds with each local learning rate of GRID, on a seed of its own, and
is scored on 10 000 images that are cut off the *training* set; the best rate goes into chosen.json. Then every method
trains with its rate on every seed and is scored on the test set. Finished cells are kept, a stopped one carries on.
`collect.py` beside this file turns the run directories into the committed tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headwater.algorithms import ALGORITHMS

HERE = Path(__file__).parent
GRID = (0.02, 0.06, 0.2)
GRID_ROUNDS, GRID_SEED = 5, 100
METHODS = [name for name in ALGORITHMS if name != "frame"]  # the frame is made of the others
# Two paces: one epoch before each of two averages at sectors is as much training as two epochs before one.
TWO_PACES: dict[str, Any] = {"algorithm": {"sector_rounds": 2}, "local": {"epochs": 1}}
# Twenty personal models on the whole test set take longer than their training, so they are scored every fifth round.
SPECIAL: dict[str, dict[str, Any]] = {
    **{name: {"eval_every": 5} for name in ("local", "fedproto", "fedmd")},
    **dict.fromkeys(("hfedavg", "hfedprox", "hfeddyn", "hscaffold", "mtgc"), TWO_PACES),
    "fedma": {"model": {"name": "mlp", "hidden": [64, 32]}},  # matching has no notion of norm layers
}


def config_of(method: str, seed: int, lr: float, rounds: int | None = None) -> Any:
    from headwater.config import Config

    special = SPECIAL.get(method, {})
    tables: dict[str, Any] = {"algorithm": {"name": method, **special.get("algorithm", {})}}
    tables |= {name: table for name, table in special.items() if name != "algorithm"}
    direct = {"seed": seed, "engine__name": "inline", "local__lr": lr, "algorithm__name": method}
    loaded = Config.load(HERE / "base.toml", [], **direct, **({"rounds": rounds} if rounds else {}))
    return loaded.merged(tables)


def cell(method: str, seed: int, lr: float, out: Path, grid: bool) -> None:
    """Train one method with one seed in this process."""
    from headwater.data.base import Data
    from headwater.data.loading import load
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    config = config_of(method, seed, lr, GRID_ROUNDS if grid else None)
    data = load("fashion_mnist")
    if grid:  # the test set stays out of sight: the last images of the training set stand in for it
        cut = len(data) - 10_000
        seen, unseen = data.take(range(cut)), data.take(range(cut, len(data)))
        data = Data(seen.x, seen.y, unseen.x, unseen.y, name="fashion_mnist", class_names=data.class_names)
    train(prepare(config, data=data), out=out)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, default=Path("runs/fashion_mnist_methods"))
    asked.add_argument("--jobs", type=int, default=2)
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--methods", default=",".join(METHODS))
    asked.add_argument("--cell", nargs=4, metavar=("METHOD", "SEED", "LR", "DIR"))
    given = asked.parse_args()
    if given.cell:
        method, seed, lr, where = given.cell
        return cell(method, int(seed), float(lr), Path(where), int(seed) == GRID_SEED)
    methods = given.methods.split(",")
    grid = [(m, GRID_SEED, lr, given.out / "grid" / m / f"lr-{lr}") for lr in GRID for m in methods]
    failed = work(grid, given.jobs)
    chosen = {m: best_rate(given.out / "grid" / m) for m in methods}
    (given.out / "chosen.json").write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    cells = [(m, s, chosen[m], given.out / "runs" / m / f"seed-{s}") for s in seeds for m in methods if chosen[m]]
    failed += work(cells, given.jobs)
    print("failed:", failed) if failed else print("done:", given.out)
    sys.exit(bool(failed))


def work(cells: list[tuple[str, int, float, Path]], jobs: int) -> list[tuple[str, int, float, Path]]:
    """Carry out what is not there yet; gives those that failed."""
    left = [one for one in cells if not (one[3] / "result.json").exists()]

    def start(one: tuple[str, int, float, Path]) -> int:
        command = [sys.executable, __file__, "--cell", *map(str, one)]
        code = subprocess.run(command, check=False).returncode
        print(*one[:3], "failed" if code else "done", flush=True)
        return code

    with ThreadPoolExecutor(jobs) as pool:
        return [one for one, code in zip(left, pool.map(start, left), strict=True) if code]


def best_rate(folder: Path) -> float | None:
    """The learning rate with the best score on the images held out of the training set; the smaller one in a tie."""
    scores = {
        float(path.parent.name.removeprefix("lr-")): json.loads(path.read_text(encoding="utf-8"))["accuracy"]
        for path in sorted(folder.glob("lr-*/result.json"))
    }
    return max(sorted(scores), key=lambda lr: scores[lr]) if scores else None


if __name__ == "__main__":
    main()
