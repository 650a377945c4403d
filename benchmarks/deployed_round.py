"""How long a round of a deployed federation takes: 8 processes of parties on this machine, joined by Flower.

    python benchmarks/deployed_round.py [--rounds 8] [--against CHECKOUT --pairs 3] [--seconds 300] [--out FILE.json]

FedAvg on the digits, with a server, 2 sectors and 5 clients. A round lasts from the row before it in the server's
rounds.jsonl to its own; the end lasts from the last row until all processes have ended. CPU is that of all processes of
the federation, so it says more than seconds if the machine has other work to do. With --against, federations of this
checkout and of another one take turns. Every federation has --seconds to finish; its processes are ended in any case.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
from federation import Federation, command  # noqa: E402
from process_tree import cpu_seconds, descendants, free_ports  # noqa: E402

SETS = ("data.fraction=0.3", "partition.clients=5", "partition.sectors=2", "partition.alpha=1.0")
PHASES = ("round", "last", "end")
LOOK = 0.02  # seconds between two looks at the files of the server

Times = dict[str, list[float]]  # by phase


def measured(source: Path, rounds: int, seconds: float, out: Path) -> dict[str, Any]:
    """Run one federation with the code of a checkout.

    Returns:
        Seconds and CPU seconds by phase, and the hash of the model.
    """
    sets = (*SETS, f"rounds={rounds}", f"deploy.server_address=127.0.0.1:{free_ports(3)}")
    words = [word for each in sets for word in ("--set", each)]
    command("deploy", "init", "fedavg", "--out", str(out), "--quiet", *words, source=source)
    with Federation(out, source=source) as federation:
        federation.start()
        marks = _watch(federation, rounds, time.monotonic() + seconds)
        ends = federation.wait(seconds)
    if any(ends.values()):
        raise RuntimeError(f"not all parties ended well: {ends}; their logs are in {out}")
    took = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(marks)]
    wall, cpu = zip(*took, strict=True)
    return {
        "seconds": _phases([*wall, time.monotonic() - marks[-1][0]]),
        "cpu": _phases([*cpu, 0.0]) | {"end": []},
        "model_sha256": federation.result()["model_sha256"],
    }


def _watch(federation: Federation, rounds: int, until: float) -> list[tuple[float, float]]:
    """Time and CPU seconds when the run began, and after each round."""
    marks: list[tuple[float, float]] = []
    begun, rows = federation.found["server"].state / "begun.json", federation.run / "rounds.jsonl"
    while len(marks) <= rounds:
        there = rows.read_bytes().count(b"\n") + 1 if rows.exists() else int(begun.exists())
        if there > len(marks):
            marks += [(time.monotonic(), _cpu(federation))] * (there - len(marks))
        if not federation.running("server") or time.monotonic() > until:
            raise RuntimeError(f"the server has not finished: {federation.said('server')[-1:]}")
        time.sleep(LOOK)
    return marks


def _cpu(federation: Federation) -> float:
    parties = [process.pid for process in federation.processes.values()]
    children = [child for party in parties for child, _ in descendants(party)]
    return sum(map(cpu_seconds, [*parties, *children]))


def _phases(steps: list[float]) -> Times:
    """The first round is left out, since every party then makes what it keeps for the run."""
    return {"round": steps[1:-2], "last": steps[-2:-1], "end": steps[-1:]}


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Medians over all federations of a checkout, and how the first checkout compares with the second."""
    lines = [f"{'':14}" + "".join(f"{f'{phase} {kind}':>16}" for kind in ("s", "CPU s") for phase in PHASES)]
    medians: list[list[float | None]] = []
    for name, runs in found.items():
        cells: list[float | None] = []
        for kind in ("seconds", "cpu"):
            for phase in PHASES:
                steps = [step for run in runs for step in run[kind][phase]]
                cells.append(statistics.median(steps) if steps else None)
        medians.append(cells)
        lines.append(f"{name:14}" + "".join(f"{'' if cell is None else f'{cell:.2f}':>16}" for cell in cells))
    if len(medians) == 2:
        ratios = ["" if not a or not b else f"{a / b:.2f}" for a, b in zip(*medians, strict=True)]
        lines.append(f"{'ratio':14}" + "".join(f"{ratio:>16}" for ratio in ratios))
    hashes = {run["model_sha256"] for runs in found.values() for run in runs}
    return "\n".join([*lines, "all models are the same" if len(hashes) == 1 else f"THE MODELS DIFFER: {hashes}"])


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=8, help="of a federation, at least 3")
    asked.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout to compare with")
    asked.add_argument("--only", action="store_true", help="run --against alone")
    asked.add_argument("--pairs", type=int, default=3, help="federations of each checkout")
    asked.add_argument("--seconds", type=float, default=300.0, help="that one federation may take")
    asked.add_argument("--out", type=Path, metavar="FILE.json", help="where to write what was measured; added to")
    words = asked.parse_args()
    if words.rounds < 3:
        asked.error("--rounds must be at least 3: the first and the last are told apart from the others")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)  # so that the processes are ended
    trees = {} if words.only else {"this": ROOT}
    if words.against is not None:
        trees["other"] = words.against.resolve()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    if words.out is not None and words.out.exists():
        found = json.loads(words.out.read_text(encoding="utf-8"))
    for turn in range(words.pairs):
        for name, source in trees.items():
            with tempfile.TemporaryDirectory() as place:
                run = measured(source, words.rounds, words.seconds, Path(place) / "federation")
            found.setdefault(name, []).append(run)
            load = os.getloadavg()[0]
            print(f"{name} {turn + 1}: {json.dumps(run['seconds'])}, load {load:.1f}", file=sys.stderr, flush=True)
            if words.out is not None:
                words.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
