"""Memory and open files over 2 000 rounds on the digits, in one process and with two worker processes.

    make endurance                             ENDURANCE="--rounds 200 inline" for less
    python proof/endurance.py [--rounds N] [--out FILE] [inline] [pool]

Each engine has a process of its own, which trains FedAvg with 4 clients and writes a run directory with checkpoints.
Memory and open files of the process and of its workers are noted at some rounds. They may not grow from a twentieth of
the rounds to the last one by more than MEMORY and FILES. Writes endurance.json; exit status 1 if something grew.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stamps import ROOT, stamp, write

sys.path.append(str(ROOT / "tools"))
from process_tree import descendants, memory_and_files

HERE = Path(__file__).resolve().parent
MEMORY = 32.0  # MiB of growth that are accepted
FILES = 4  # open files more that are accepted
SHARES = (0.05, 0.25, 0.5, 0.75, 1.0)  # of all rounds, at which is measured
SETTINGS: dict[str, Any] = {
    "method": "fedavg",
    "data": "digits",
    "data__fraction": 0.1,
    "clients": 4,
    "sectors": 2,
    "scheme": "iid",
    "model": "mlp",
    "model__hidden": [16],
    "local__epochs": 1,
}


def measured() -> dict[str, Any]:
    """MiB and open files of this process and of those below it."""
    gc.collect()
    pids = [os.getpid(), *(pid for pid, _ in descendants(os.getpid()))]
    rows = [row for pid in pids if (row := memory_and_files(pid)) is not None]
    return {"mib": round(sum(row[0] for row in rows) / 2**20, 1), "files": sum(row[1] for row in rows)}


def train(engine: str, rounds: int) -> None:
    """In the child process: train, and print a line of JSON at each round that is measured."""
    import headwater as hw

    at = {max(1, round(share * rounds)) for share in SHARES}

    class Watch(hw.Callback):
        def round_end(self, row: dict[str, Any]) -> None:
            if row["round"] in at:
                print(json.dumps({"round": row["round"]} | measured()), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        more = {"rounds": rounds, "eval_every": max(1, rounds // 20), "engine__workers": 2}
        run = hw.run(**SETTINGS, **more, engine=engine, out=f"{folder}/run", progress=False, callbacks=[Watch()])
        print(json.dumps({"model_sha256": run.result["model_sha256"]}), flush=True)


def endured(engine: str, rounds: int) -> dict[str, Any]:
    """Train in a child process, and judge what it noted."""
    words = [sys.executable, str(HERE / "endurance.py"), "--child", "--rounds", str(rounds), engine]
    process = subprocess.run(words, capture_output=True, text=True)
    lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    rows = [line for line in lines if "round" in line]
    if process.returncode or len(rows) < 2:
        return {"failed": process.stderr[-2000:], "flat": False, "rows": rows}
    memory, files = (rows[-1][key] - rows[0][key] for key in ("mib", "files"))
    told = {"growth_mib": round(memory, 1), "growth_files": files, "flat": memory <= MEMORY and files <= FILES}
    return told | lines[-1] | {"rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=HERE / "endurance.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help="inline, pool; both by default")
    options = parser.parse_args()
    options.engines = options.engines or ["inline", "pool"]
    if options.child:
        train(options.engines[0], options.rounds)
        return 0
    found = stamp(f"python proof/endurance.py --rounds {options.rounds} {' '.join(options.engines)}")
    found |= {"accepted_growth": {"mib": MEMORY, "files": FILES}, "engines": {}}
    for engine in options.engines:
        found["engines"][engine] = told = endured(engine, options.rounds)
        write(options.out, found)
        for row in told["rows"]:
            print(f"{engine}: round {row['round']}: {row['mib']} MiB, {row['files']} open files")
        print(f"{engine}: {'flat' if told['flat'] else told.get('failed', 'it grew')}")
    hashes = {told.get("model_sha256") for told in found["engines"].values()}
    same = len(hashes) == 1
    print("the same model from all engines" if same else f"different models: {hashes}")
    return 0 if same and all(told["flat"] for told in found["engines"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
