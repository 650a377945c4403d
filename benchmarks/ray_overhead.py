"""What a round costs on Ray beyond the work itself.

    python benchmarks/ray_overhead.py [--repeats 5] [--out FILE.json]

FedAvg with 20 clients whose training is next to nothing and models of 1 MB, on two workers of a Ray cluster on this
machine and in this process, by turns. What is above the time in this process, shared out evenly to the workers, is the
engine's. Ray listens on the network, so where that is allowed all of it happens in a network of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CLIENTS, WORKERS, NUMBERS = 20, 2, 250_000
ROUNDS, MOST = 20, 100.0  # of one turn; milliseconds a round that are wanted at most
INSIDE = "HEADWATER_OWN_NETWORK"


def secluded() -> list[str] | None:
    """This command in a network of its own, where that can be had and is not so yet."""
    words = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if INSIDE in os.environ or shutil.which("unshare") is None or subprocess.run([*words, "true"]).returncode:
        return None
    return [*words, sys.executable, *sys.argv]


def measure(repeats: int) -> dict[str, Any]:
    import record
    import torch
    from torch import nn

    from headwater.config import Config
    from headwater.data.base import Data
    from headwater.engines.inline import Inline
    from headwater.engines.ray.driver import Ray
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    where = record.about() | {"load": record.load()}
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(10 * CLIENTS, 10, generator=generator), torch.arange(10 * CLIENTS) % 10
    tree = {
        "rounds": ROUNDS,
        "eval_every": ROUNDS,
        "algorithm": {"name": "fedavg"},
        "data": {"name": "arrays", "validation": 0, "reference_size": 0},
        "partition": {"scheme": "iid", "clients": CLIENTS, "sectors": 2},
        "local": {"epochs": 1, "batch": 10},
        "engine": {"stack": "off"},  # a task for every client
    }
    wide = NUMBERS // 21
    model = lambda: nn.Sequential(nn.Linear(10, wide), nn.ReLU(), nn.Linear(wide, 10))  # noqa: E731
    made = prepare(Config(**tree), data=Data(x, y, x[:20], y[:20]), model=model)

    def seconds(engine: Any) -> tuple[float, str]:
        begun = time.perf_counter()
        run = train(made, engine=engine)
        return 1e3 * (time.perf_counter() - begun) / ROUNDS, run.result["model_sha256"]

    inline, ray = Inline(), Ray(WORKERS)
    turns: dict[str, list[float]] = {"inline": [], "ray": []}
    try:
        expected = seconds(inline)[1]
        assert seconds(ray)[1] == expected, "the engines differ"
        for _ in range(repeats):
            for name, engine in (("inline", inline), ("ray", ray)):
                turns[name].append(round(seconds(engine)[0], 2))
                print(f"{name}: {turns[name][-1]:.1f} ms a round", file=sys.stderr)
    finally:
        ray.close()
    above = [r - i / WORKERS for i, r in zip(turns["inline"], turns["ray"], strict=True)]
    import ray as package

    return where | {
        "ray": package.__version__,
        "clients": CLIENTS,
        "workers": WORKERS,
        "model_bytes": 4 * sum(p.numel() for p in model().parameters()),
        "rounds": ROUNDS,
        "milliseconds_a_round": turns,
        "overhead_ms": round(statistics.median(above), 1),
        "wanted_ms": MOST,
    }


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    command = secluded()
    if command is not None:
        return subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode
    found = measure(given.repeats)
    print(json.dumps(found, indent=1))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found["overhead_ms"] > MOST


if __name__ == "__main__":
    sys.exit(main())
