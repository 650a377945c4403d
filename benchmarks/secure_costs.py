"""What `privacy.secure = "both"` costs: bytes and CPU time of a round, as multiples of the round without.

    python benchmarks/secure_costs.py [--repeats 3]

Five methods on the digits with 6, 20 and 50 clients in two sectors, in one process. Bytes are those of the ledger. Time
is CPU time of all parties together, of a round without evaluation, by turns with and without secure sums, so that other
work on the machine does not count; each client is trained by itself, as a party of a federation is. Writes
secure_costs.json beside this file, which docs/secure.md shows. Rows that the file has already are kept, so the same
command carries on where it was stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from contextlib import suppress
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
COMMAND = "python benchmarks/secure_costs.py"
ABOUT = ("date", "commit", "machine")  # of every row, since rows may be from several calls


def made(method: str, clients: int, mode: str) -> Experiment:
    sets = [f"algorithm.name={method}", *METHODS[method], f"partition.clients={clients}", "partition.sectors=2"]
    sets += ["partition.alpha=1.0", f"rounds={ROUNDS}", f"eval_every={ROUNDS}", f"privacy.secure={mode}"]
    return prepare(Config.load(None, [*sets, "engine.name=inline", "engine.stack=off", "engine.threads=1"]))


class FirstRoundDone(Exception):  # noqa: N818 (a signal: the rest of the run is not needed)
    """Ends a run after the round that is timed."""


def seconds_of_round(experiment: Experiment) -> float:
    """CPU seconds of the first round."""
    times: list[float] = []

    def watch(event: Any) -> None:
        if event.kind in ("start", "round"):
            times.append(time.process_time())
        if event.kind == "round":
            raise FirstRoundDone

    with suppress(FirstRoundDone):
        train(experiment, watch=watch)
    return times[1] - times[0]


def measure(method: str, clients: int, repeats: int) -> dict[str, Any]:
    """Bytes of a round by mode, link and way, and the ratio of CPU times: of the smallest one of each mode."""
    experiments = {mode: made(method, clients, mode) for mode in MODES}
    sent = {mode: train(experiment).history[0]["bytes"] for mode, experiment in experiments.items()}
    taken = [{mode: seconds_of_round(experiment) for mode, experiment in experiments.items()} for _ in range(repeats)]
    none, both = (min(each[mode] for each in taken) for mode in MODES)
    ratios = [round(each["both"] / each["none"], 3) for each in taken]
    return {
        "method": method,
        "clients": clients,
        "options": list(METHODS[method]),
        "bytes": sent,
        "cpu_ratio": round(both / none, 3),
        "cpu_ratios": ratios,
    }


def kept_rows(path: Path, repeats: int) -> dict[tuple[str, int], dict[str, Any]]:
    """Rows of an earlier call that the same command gave, by method and number of clients."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
    return {
        (row["method"], row["clients"]): {key: found[key] for key in ABOUT} | row
        for row in found["rows"]
        if found["command"] == COMMAND and len(row["cpu_ratios"]) == repeats
        if row["method"] in METHODS and row.get("options", []) == list(METHODS[row["method"]])
    }


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--out", type=Path, default=FILE)
    words = asked.parse_args()
    cells = list(itertools.product(METHODS, CLIENTS))
    known = kept_rows(words.out, words.repeats)
    missing = [cell for cell in cells if cell not in known]
    for mode in MODES if missing else ():  # what the first run loads does not count
        seconds_of_round(made("fedavg", CLIENTS[0], mode))
    about = record.about()
    for cell in missing:
        row = known[cell] = about | measure(*cell, words.repeats)
        print(*cell, row["cpu_ratio"], row["cpu_ratios"], flush=True)
        found = about | {"command": COMMAND, "rows": [known[each] for each in cells if each in known]}
        words.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
