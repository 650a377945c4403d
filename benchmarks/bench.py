"""Times as ratios, taken in turns in one run, because a shared machine is never quiet.

    python benchmarks/bench.py [--repeats 3]

Prints a table and appends one JSON line a row to benchmarks/history.jsonl, with the machine, the date and the commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Work = Callable[[], float | None]  # gives an accuracy where equal work can be shown to be equal


def engines() -> tuple[str, dict[str, Work]]:
    """FedHEAD on digits, 5 rounds: in this process, and on worker processes that are already up."""
    from headwater.config import Config
    from headwater.engines.inline import Inline
    from headwater.engines.pool import Pool
    from headwater.experiment import prepare
    from headwater.training import train

    ready = prepare(Config.load(None, [], rounds=5))
    pool = Pool(os.cpu_count() or 1)

    def inline() -> float:
        return train(ready, engine=Inline()).accuracy

    def pooled() -> float:
        return train(ready, engine=pool).accuracy

    return "FedHEAD on digits, 5 rounds", {"inline": inline, f"pool of {os.cpu_count()}": pooled}


def teachers() -> tuple[str, dict[str, Work]]:
    """Ten teachers, 500 inputs, 10 epochs into one student: outputs asked once, and asked again in every epoch."""
    import numpy as np
    import torch

    from headwater.data.base import Examples, Split
    from headwater.models.base import ModelSpec
    from headwater.specs import DistillSpec
    from headwater.stages.consolidate import distill
    from headwater.stages.site import Context, Site

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, none = torch.randn(500, 3, 32, 32), Examples(torch.zeros(0, 3, 32, 32), torch.zeros(0, dtype=torch.int64))
    rows = Examples(x, torch.randint(0, 10, (500,)))
    context = Context(
        Split(rows, none, x, none, 10, (3, 32, 32), "noise"),
        {"c0": np.arange(500)},
        {},
        {"resnet8": ModelSpec("resnet8", (3, 32, 32), 10)},
        0,
    )
    members = {f"t{i}": context.initial("resnet8", i) for i in range(10)}

    def taught(times: int, epochs: int) -> None:
        student = context.initial("resnet8", 99)
        for turn in range(times):
            spec = DistillSpec(epochs=epochs, weights="uniform")
            student = distill(Site(context, "c0", (turn, "distill")), student, members, spec)

    def once() -> None:
        taught(1, 10)

    def anew() -> None:
        taught(10, 1)

    return "10 ResNet-8 teachers, 500 inputs, 10 epochs", {"outputs asked once": once, "asked every epoch": anew}


def start() -> tuple[str, dict[str, Work]]:
    """What a person waits for before anything happens."""

    def command(*words: str) -> Work:
        def run() -> None:
            subprocess.run([Path(sys.executable).parent / "headwater", *words], check=True, capture_output=True)

        return run

    return "start", {"headwater --help": command("--help"), "headwater list": command("list", "algorithms")}


def measure(title: str, contestants: dict[str, Work], repeats: int) -> list[dict[str, Any]]:
    """Every contestant in turn, `repeats` times; the ratio is to the first one's median."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    found: dict[str, float | None] = {}
    for _ in range(repeats):
        for name, work in contestants.items():
            begun = time.perf_counter()
            found[name] = work()
            seconds[name].append(time.perf_counter() - begun)
    first = statistics.median(next(iter(seconds.values())))
    return [
        {
            "work": title,
            "contestant": name,
            "median_seconds": round(statistics.median(times), 3),
            "ratio": round(statistics.median(times) / first, 3),
            "accuracy": found[name],
        }
        for name, times in seconds.items()
    ]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--repeats", type=int, default=3)
    repeats = asked.parse_args().repeats
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    with (HERE / "history.jsonl").open("a", encoding="utf-8") as history:
        for prepare in (start, engines, teachers):
            for row in measure(*prepare(), repeats):
                print(f"{row['work']:45} {row['contestant']:22} {row['median_seconds']:9.3f} s  × {row['ratio']:.2f}")
                history.write(json.dumps(about | row) + "\n")


if __name__ == "__main__":
    main()
