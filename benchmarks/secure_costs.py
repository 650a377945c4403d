"""What `privacy.secure = "both"` costs: bytes and CPU time of a round, as multiples of the round without.

    python benchmarks/secure_costs.py [--repeats 2]

Five methods on the digits with 6, 20 and 50 clients in two sectors, in one process. Bytes are those of the ledger. Time
is CPU time of all parties together, of a round without evaluation, by turns with and without secure sums, so that other
work on the machine does not count; each client is trained by itself, as a party of a federation is. Writes
secure_costs.json beside this file, which docs/secure.md shows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record

from headwater.config import Config
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import train

METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "hfedavg": (),
    "mtgc": (),
    "fedeed": ("algorithm.cohorts=2",),
    "fedhkd": (),
}
CLIENTS, MODES = (6, 20, 50), ("none", "both")
ROUNDS = 2  # the first one is timed; the last one is evaluated
FILE = Path(__file__).with_name("secure_costs.json")


def made(method: str, clients: int, mode: str) -> Experiment:
    sets = [f"algorithm.name={method}", *METHODS[method], f"partition.clients={clients}", "partition.sectors=2"]
    sets += ["partition.alpha=1.0", f"rounds={ROUNDS}", f"eval_every={ROUNDS}", f"privacy.secure={mode}"]
    return prepare(Config.load(None, [*sets, "engine.name=inline", "engine.stack=off", "engine.threads=1"]))


def turn(experiment: Experiment) -> tuple[float, dict[str, dict[str, int]], int]:
    """CPU seconds of a round, bytes of a round by link and way, and parameters of the model."""
    times: list[float] = []

    def watch(event: Any) -> None:
        if event.kind in ("start", "round"):
            times.append(time.process_time())

    run = train(experiment, watch=watch)
    sent: dict[str, dict[str, int]] = run.history[0]["bytes"]
    return times[1] - times[0], sent, int(run.result["parameters"])


def cells(repeats: int) -> Iterator[list[dict[str, Any]]]:
    """All rows so far, each time that one has been measured once more."""
    experiments: dict[tuple[str, int, str], Experiment] = {}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for method, clients in itertools.cycle(itertools.product(METHODS, CLIENTS)):
        row = rows.setdefault((method, clients), {"method": method, "clients": clients, "cpu_ratios": []})
        if len(row["cpu_ratios"]) == repeats:
            return
        seconds = {}
        for mode in MODES:
            if (method, clients, mode) not in experiments:
                experiments[method, clients, mode] = made(method, clients, mode)
            seconds[mode], sent, row["parameters"] = turn(experiments[method, clients, mode])
            row.setdefault("bytes", {})[mode] = sent
        row["cpu_ratios"].append(round(seconds["both"] / seconds["none"], 3))
        yield list(rows.values())


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--repeats", type=int, default=2)
    asked.add_argument("--out", type=Path, default=FILE)
    words = asked.parse_args()
    for mode in MODES:  # what the first run loads does not count
        turn(made("fedavg", CLIENTS[0], mode))
    about = record.about() | {"command": "python benchmarks/secure_costs.py"}
    for rows in cells(words.repeats):
        print(rows[-1]["method"], rows[-1]["clients"], rows[-1]["cpu_ratios"], flush=True)
        words.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
