"""The same bits everywhere: five methods in one process, on worker processes, on Ray, and as a federation on Flower.

    python experiments/deployment/run.py [fedavg mtgc ...]

For each method and engine: the final model's hash, seconds a round and, of the federation, what the ledger charged
beside the payload that all parties wrote down. Ray is started in a network of its own, with one node and with two;
where that cannot be had it is left out, and the table says why. Writes beside this file table.md, obtained.json and
machine.json; whatever was made on the way is in runs/deployment.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headwater.config import Config
from headwater.engines import open_engine
from headwater.training.experiment import prepare
from headwater.training.loop import train

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.append(str(ROOT / "tools"))
from federation import TIERS, WAYS, Federation, charged  # noqa: E402

METHODS = ("fedavg", "fedhead+", "mtgc", "fedeed", "fedhkd")
ENGINES = {
    "inline": "one process",
    "pool": "2 worker processes",
    "ray": "Ray",
    "ray2": "Ray, 2 nodes",
    "flower": "Flower",
}
ROUNDS = 3
SPLIT = ("data.fraction=0.3", "partition.clients=6", "partition.sectors=2", "partition.alpha=1.0")
LONG = 900  # seconds for one federation, or for all methods on one cluster
ALONE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
INSIDE = 'ip link set lo up && exec "$@"'

Cell = dict[str, Any]


def config(method: str, engine: str = "inline", *sets: str) -> Config:
    return Config.load(None, [f"rounds={ROUNDS}", *SPLIT, f"algorithm.name={method}", f"engine.name={engine}", *sets])


def cell(result: dict[str, Any], spans: list[dict[str, Any]]) -> Cell:
    """What is told of a run; starting workers or parties does not count as time."""
    times = [span for span in spans if span["round"] > 0]
    seconds = max(span["end"] for span in times) - min(span["start"] for span in times)
    due = {f"{tier} {way}": size for (tier, way), size in charged(result).items()}
    return {"model_sha256": result["model_sha256"], "seconds_a_round": round(seconds / ROUNDS, 2), "ledger": due}


def simulate(methods: list[str], engine: str, *sets: str) -> dict[str, Cell]:
    made = {method: prepare(config(method, engine, *sets)) for method in methods}
    found = {}
    with open_engine(config(methods[0], engine, *sets), list(made.values())) as opened:
        for method, experiment in made.items():
            run = train(experiment, engine=opened)
            found[method] = cell(run.result, run.timeline)
    return found


def deploy(method: str, out: Path) -> Cell:
    with Federation.init(out, config(method)) as federation:
        federation.start()
        ends = federation.wait(LONG)
        if any(ends.values()):
            raise RuntimeError(f"not all parties ended well: {ends}")
    spans = [json.loads(line) for line in (federation.run / "timeline.jsonl").read_text(encoding="utf-8").splitlines()]
    sent = federation.sent()
    payload = {f"{tier} {way}": sent[tier, way] for tier in (*TIERS, "relay") for way in WAYS}
    return cell(federation.result(), spans) | {"payload": payload}


# -- Ray, in a network of its own


def cluster(engine: str, methods: list[str], out: Path) -> tuple[dict[str, Cell], str]:
    """What came of it, or why there is nothing."""
    if find_spec("ray") is None:
        return {}, "ray is not installed"
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "ip link set lo up"], capture_output=True).returncode:
        return {}, "this user cannot make a network of its own"
    file = out / f"{engine}.json"
    file.unlink(missing_ok=True)
    words = [
        *ALONE,
        INSIDE,
        "sh",
        sys.executable,
        str(Path(__file__).resolve()),
        "--inside",
        engine,
        str(file.resolve()),
    ]
    with (out / f"{engine}.log").open("w", encoding="utf-8") as log:
        try:
            plain = os.environ | {"RAY_worker_niceness": "0"}  # else workers only get what others leave
            subprocess.run([*words, *methods], stdout=log, stderr=log, timeout=LONG, check=True, env=plain)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            return {}, f"it failed ({error}); see {log.name}"
    found: dict[str, Cell] = json.loads(file.read_text(encoding="utf-8"))
    return found, ""


def inside(engine: str, file: Path, methods: list[str]) -> None:
    """In that network: all methods on one cluster."""
    if engine == "ray":
        found = simulate(methods, "ray", "engine.workers=2")
    else:
        from ray.cluster_utils import Cluster

        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"headwater_s0": 1}})
        nodes.add_node(num_cpus=1, resources={"headwater_s1": 1})
        try:
            found = simulate(methods, "ray", f"engine.address={nodes.address}")
        finally:
            nodes.shutdown()
    file.write_text(json.dumps(found), encoding="utf-8")


# -- what is written


def table(found: dict[str, dict[str, Cell]], absent: dict[str, str]) -> str:
    engines = [engine for engine in ENGINES if engine not in absent]
    lines = ["The first 12 digits of `model_sha256`, and seconds a round:", ""]
    lines += [f"| method | {' | '.join(ENGINES[engine] for engine in engines)} | |", "|---" * (len(engines) + 2) + "|"]
    for method, row in found.items():
        shown = [f"`{row[engine]['model_sha256'][:12]}`, {row[engine]['seconds_a_round']:.2f} s" for engine in engines]
        same = len({row[engine]["model_sha256"] for engine in engines}) == 1
        lines.append(f"| {method} | {' | '.join(shown)} | {'the same' if same else '**not the same**'} |")
    lines += [f"\nWithout {ENGINES[engine]}: {why}." for engine, why in absent.items()]
    lines += ["", "Bytes of the federation on Flower, all rounds, set-up and measures included:", ""]
    lines += ["| method | link | way | ledger | payload sent | |", "|---|---|---|---|---|---|"]
    for method, row in found.items():
        if (flower := row.get("flower")) is None:
            continue
        for tier in TIERS:
            for way in WAYS:
                due, paid = flower["ledger"][f"{tier} {way}"], flower["payload"][f"{tier} {way}"]
                link = tier.replace("_", " – ")
                lines.append(f"| {method} | {link} | {way} | {due:,} | {paid:,} | {'=' if due == paid else '**≠**'} |")
        relayed = [flower["payload"][f"relay {way}"] for way in WAYS]
        if any(relayed):
            lines.append(f"| {method} | relayed inside sectors | up, down | | {relayed[0]:,}, {relayed[1]:,} | |")
    return "\n".join(lines) + "\n"


def machine(command: str, hashes: dict[str, str]) -> dict[str, Any]:
    """Where and of which code results are, and the models' hashes."""
    git = {"capture_output": True, "text": True, "cwd": ROOT}
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **git).stdout.strip()
    changed = subprocess.run(["git", "status", "--porcelain", "--", "src", "tools"], **git).stdout.strip()
    names = ("headwater", "torch", "numpy", "ray", "flwr")
    versions = {name: metadata.version(name) for name in names if find_spec(name) is not None}
    return {
        "command": command,
        "commit": head + ("-dirty" if changed else ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; times are not a benchmark",
        "versions": {"python": platform.python_version()} | versions,
        "model_sha256": hashes,
    }


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("methods", nargs="*", default=[], help=f"of {', '.join(METHODS)}; all if left out")
    asked.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    words = asked.parse_args()
    methods = words.methods or list(METHODS)
    if words.inside:
        inside(words.inside[0], Path(words.inside[1]), methods)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is to end, too
    out = ROOT / "runs" / "deployment"
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Cell]] = {method: {} for method in methods}
    absent: dict[str, str] = {}

    def take(engine: str, cells: dict[str, Cell], why: str = "") -> None:
        for method, told in cells.items():
            found[method][engine] = told
            hashed, seconds = told["model_sha256"][:12], told["seconds_a_round"]
            print(f"{method} on {ENGINES[engine]}: {hashed}, {seconds} s a round", flush=True)
        if why:
            absent[engine] = why
            print(f"{ENGINES[engine]} is left out: {why}", flush=True)

    for engine in ("inline", "pool"):
        take(engine, simulate(methods, engine, "engine.workers=2") if engine == "pool" else simulate(methods, engine))
    for engine in ("ray", "ray2"):
        take(engine, *cluster(engine, methods, out))
    for method in methods:
        take("flower", {method: deploy(method, out / method)})
    (HERE / "table.md").write_text(table(found, absent), encoding="utf-8")
    obtained = {"cells": found, "absent": absent}
    (HERE / "obtained.json").write_text(json.dumps(obtained, indent=1) + "\n", encoding="utf-8")
    told = machine("make deploy-check", {method: row["inline"]["model_sha256"] for method, row in found.items()})
    (HERE / "machine.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    same = all(len({told["model_sha256"] for told in row.values()}) == 1 for row in found.values())
    bytes_too = all(row["flower"]["ledger"].items() <= row["flower"]["payload"].items() for row in found.values())
    print(table(found, absent))
    return 0 if same and bytes_too else 1


if __name__ == "__main__":
    sys.exit(main())
