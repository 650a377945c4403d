"""The join of the papers: which combination is best by validation, and what it does on data not used for choosing.

    python experiments/join/run.py choose --out runs/join [--seeds 0,1,2] [--only cifar10]
    python experiments/join/run.py unseen --out runs/join [--chosen "NAME"] [--seeds 0,1,2,3,4] [--only digits]

`choose` trains every candidate of settings.py on Fashion-MNIST and CIFAR-10. Its score is the accuracy on images cut
off the *training* set, which nobody trains on, distils on or validates with; the test sets are not read. `unseen`
trains the chosen candidate and the papers' methods on digits, ISCX-VPN2016 and AG News, and scores them on the test
sets.

In both, every method's local rate is tuned first by the library's own tuning: five rates around the method's default,
judged on the validation set, on a seed of its own, with the same number of rounds for each. Where the best is the
largest or smallest of these, a further one is tried beyond it, until it is not. Finished runs are kept,
also those of which choose.csv and unseen.csv have the result; a stopped run carries on. `collect.py` turns the folder
into what is committed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import features
from collect import HERE, kept, ranked, read
from settings import AROUND, CANDIDATES, CHOOSING, CONTROLS, FEATURES, HELD, PAPERS, Tables, unseen

from headwater.config import Config
from headwater.config.plain_tables import merge
from headwater.data.base import Data
from headwater.data.loading import load
from headwater.errors import Diverged, TaskError
from headwater.sweep.tuning import at_edge, grid_for, points_of, tune
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train

TUNED_FOR, TUNED_ON = 6, 100  # rounds of a rate that reaches the end; the seed
FURTHER = 3.0  # the ratio of a further rate to the one at the edge

Prepare = Callable[[Config], Experiment]


@lru_cache(maxsize=1)
def without_test(name: str) -> Data:
    """The training set, whose last images stand in for the test set."""
    data = load(name)
    cut = len(data) - HELD[name]
    seen, held = data.take(range(cut)), data.take(range(cut, len(data)))
    return Data(seen.x, seen.y, held.x, held.y, name=name, class_names=data.class_names)


def config_of(data: Tables, method: Tables, seed: int) -> Config:
    return Config(**merge(merge(AROUND, data), merge(method, {"seed": seed})))


def rate_of(data: Tables, method: Tables, made: Prepare, out: Path) -> float:
    """The local rate that validation chooses, from tune.json if it is there; never the edge of the rates tried."""
    config = config_of(data, method, TUNED_ON)
    points = points_of(grid_for(made(config).config, [("local.lr", ())]))
    while True:
        configs = [config.merged({"local": {"lr": float(point["local.lr"])}}) for point in points]
        found = tune(points, configs, made, out / f"rates-{len(points)}", TUNED_FOR, lambda name: nullcontext(None))
        best = float(found["best"]["local.lr"])
        if not (side := at_edge(found, "local.lr")):
            return best
        points = [*points, {"local.lr": f"{best * FURTHER**side:.2g}"}]


def cells(data: Tables, methods: dict[str, Tables], made: Prepare, out: Path, seeds: list[int]) -> None:
    """Every method with every seed: first all methods with the first seed, so that there is soon a picture."""
    known = kept(HERE / f"{out.parent.name}.csv")
    rates = {name: float(row["local_lr"]) for (data_name, name, _), row in known.items() if data_name == out.name}
    for seed in seeds:
        for name, method in methods.items():
            folder = out / name.replace(", ", "-").replace(" ", "_")
            path = folder / f"seed-{seed}"
            done = (path / "result.json").exists() or (out.name, name, seed) in known
            if done or (folder / "failed.json").exists():
                continue
            try:
                if name not in rates:
                    rates[name] = rate_of(data, method, made, folder)
                config = config_of(data, method, seed).merged({"local": {"lr": rates[name]}})
                run = train(made(config), out=path)
                print(out.name, name, seed, f"lr {rates[name]:g}", f"{run.accuracy:.4f}", flush=True)
            except (Diverged, TaskError) as error:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "failed.json").write_text(json.dumps({"seed": seed, "why": str(error)}), encoding="utf-8")
                print(out.name, name, seed, "failed:", error, flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("stage", choices=["choose", "unseen"])
    asked.add_argument("--out", type=Path, default=Path("runs/join"))
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--only", default="", help="one data set")
    asked.add_argument("--chosen", default="", help="the candidate, for `unseen`; the best of `choose` if not given")
    given = asked.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if given.stage == "choose":
        for name, data in CHOOSING.items():
            if given.only in ("", name):
                made: Any = partial(prepare, data=without_test(name))
                cells(data, CANDIDATES, made, given.out / "choose" / name, seeds)
        return
    best = ranked(kept(HERE / "choose.csv") | read(given.out / "choose", list(CHOOSING), list(CANDIDATES)))
    given.chosen = given.chosen or (best[0][1] if best else "")
    if given.chosen not in CANDIDATES:
        asked.error(f"--chosen must be one of {', '.join(map(repr, CANDIDATES))}, got {given.chosen!r}")
    methods = PAPERS | CONTROLS | {"joined": CANDIDATES[given.chosen]}
    for name, data in unseen(given.out).items():
        if given.only in ("", name):
            if name == "ag_news":
                features.ag_news(given.out / FEATURES)
            cells(data, methods, prepare, given.out / "unseen" / name, seeds)
    (given.out / "unseen" / "chosen.json").write_text(json.dumps({"candidate": given.chosen}), encoding="utf-8")


if __name__ == "__main__":
    main()
