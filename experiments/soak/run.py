"""A federation over network namespaces for an hour, with a fault of the network every 30 s.

    make soak                                  as root; SOAK="--minutes 3 --seed 1" for another length and other faults
    python experiments/soak/run.py --minutes 60 --every 30 --seed 0

Server, 2 hosts and 4 clients, each in a network of its own. Faults are drawn from the seed; after each of them the docs
promise the simulation's model as long as nobody is left out of a round. Beside this file it writes, after every fault,
obtained.json (every figure so far), and at the end table.md. Stopped in between, it goes on where it was when it is
called again with the same options; --new begins anew. Folders of the parties are in runs/soak.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from headwater.algorithms.base import outputs
from headwater.config import Config
from headwater.core import serialization
from headwater.core.params import digest
from headwater.engines.jobs import pick
from headwater.training import checkpoint

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path += [str(ROOT / "tools"), str(HERE)]
from evidence import machine, table  # noqa: E402

from federation import Federation, simulate  # noqa: E402
from networks import DELAY, LOSS, Networks, missing  # noqa: E402
from process_tree import descendants, memory_and_files  # noqa: E402

PARTIES = ("server", "s0", "s1", "c0", "c1", "c2", "c3")
SETTINGS = (
    "data.fraction=0.15",
    "partition.alpha=1.0",
    "partition.clients=4",
    "partition.sectors=2",
    "local.epochs=1",
    "engine.name=inline",
    "deploy.deadline=300",
)
KINDS = {"cut": 4, "slow": 3, "address": 3, "move": 1}  # how often each is drawn, in relation to the others
CUT = 30.0  # seconds
START = 300.0  # seconds in which all parties are there and a round is done
STUCK = 600.0  # seconds without a finished round after which the soak has failed
TICK = 0.5


class Soak:
    """The evidence so far, and the federation that it is about.

    Args:
        options: of the command.
        federation: in its networks, in which faults are made.
        found: the content of obtained.json.
    """

    def __init__(self, options: argparse.Namespace, federation: Federation, found: dict[str, Any]) -> None:
        assert federation.networks is not None
        self.options, self.federation, self.networks, self.found = options, federation, federation.networks, found
        self.before = found["seconds"]  # of earlier calls
        self.began = self.moved = time.monotonic()
        self.round = 0

    @property
    def now(self) -> float:
        """Seconds of the soak, over all calls."""
        return float(self.before + time.monotonic() - self.began)

    def run(self) -> None:
        end, every = 60.0 * self.options.minutes, self.options.every
        self._begin()
        while self.now < end and self._goes_on():
            fault = self._fault()
            self._wait(min(fault["at"] + every, end) - self.now)
            self.networks.mend(fault["party"])
            self._sample()
            self.save()
            print(f"{self.now:6.0f} s, round {self.round}: {fault['kind']} of {fault['party']} is over", flush=True)
        self._wait_for_round(self.round + 2)  # undisturbed, so that every party is back
        self._sample()
        self.save()

    def save(self) -> None:
        self.found["seconds"], self.found["rounds"] = round(self.now, 1), self.round - 1
        lines = [line for name in ("server", "s0", "s1") for line in self.federation.said(name)]
        self.found["left_out"] = sorted({line for line in lines if "left out" in line or "counts for nothing" in line})
        checkpoint.write_whole(self.options.evidence, json.dumps(self.found, indent=1) + "\n")

    # -- rounds

    def _begin(self) -> None:
        """Start all parties and wait for two rounds; only then is the memory of a party that of one at work."""
        self.federation.start()
        self._look()
        first = self.round
        self.federation.until_round(first + 2, START)
        self.began = self.moved = time.monotonic()
        self._look()
        self.found["starts"].append({"at": round(self.now, 1), "round": self.round})
        self._sample()

    def _goes_on(self) -> bool:
        return self.federation.running("server")

    def _look(self) -> None:
        now = self.federation.status("server").get("round") or 0
        if now > self.round:
            self.round, self.moved = now, time.monotonic()
            self.found["times"].append([now, round(self.now, 1)])

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._goes_on():
            time.sleep(min(TICK, max(0.0, until - time.monotonic())))
            self._look()
            if time.monotonic() - self.moved > STUCK:
                raise TimeoutError(f"no round was finished for {STUCK:.0f} s, in round {self.round}")

    def _wait_for_round(self, round: int) -> None:
        while self.round < round and self._goes_on():
            self._wait(TICK)

    # -- faults

    def _fault(self) -> dict[str, Any]:
        """Begin the next fault. Its seed is its number, so that a soak that goes on draws the same ones."""
        number = len(self.found["faults"])
        drawn = random.Random(f"{self.options.seed}/{number}")
        (kind,) = drawn.choices([*KINDS], [*KINDS.values()])
        hosts, clients = PARTIES[1:3], PARTIES[3:]
        party = drawn.choice({"move": hosts, "address": clients}.get(kind, (*hosts, *clients)))
        fault: dict[str, Any] = {"kind": kind, "party": party, "at": round(self.now, 1), "round": self.round}
        self.found["faults"].append(fault)
        match kind:
            case "cut":
                self.networks.cut(party)
                self._wait(CUT)
                self.networks.mend(party)
            case "slow":
                self.networks.slow(party, seed=number)
            case "address":
                self.networks.move(party)
            case "move":  # a host goes to another address; with the server down, its round is repeated, not lost
                self.federation.stop("server", party)
                self.networks.move(party)
                self.federation.start("server", party)
        return fault

    # -- figures

    def _sample(self) -> None:
        row: dict[str, Any] = {"at": round(self.now, 1), "round": self.round}
        for name, process in self.federation.processes.items():
            each = [memory_and_files(pid) for pid in (process.pid, *(pid for pid, _ in descendants(process.pid)))]
            known = [entry for entry in each if entry is not None]
            if known:
                row[name] = [round(sum(size for size, _ in known) / 1e6), sum(files for _, files in known), process.pid]
        self.found["samples"].append(row)


def held(run: Path) -> tuple[int, str]:
    """The last round of a run, and the `model_sha256` of its model, from the checkpoint or the result."""
    if (run / "result.json").exists():
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        return result["rounds"], result["model_sha256"]
    head = max((run / "checkpoints").glob("round-*.json"))
    row = json.loads(head.read_text(encoding="utf-8"))
    ref = outputs(checkpoint.decode(row["state"]).state).model.nodes["server"]
    model = pick(serialization.read(head.parent / "values" / row["files"][ref.name]), ref)
    return row["round"], digest(model.named())


def losses(run: Path) -> dict[int, tuple[float, float]]:
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["round"]: (row["loss"], row["accuracy"]) for row in rows}


def result(federation: Federation, found: dict[str, Any], out: Path) -> dict[str, Any]:
    """The model after the last round beside that of a simulation of so many rounds."""
    rounds, sha256 = held(federation.run)
    simulated = simulate(federation, out / "simulation", "--engine", "inline", "--rounds", str(rounds))
    ours, theirs = losses(federation.run), losses(out / "simulation")
    other = [round for round in range(1, rounds + 1) if ours.get(round) != theirs.get(round)]
    return {
        "rounds": rounds,
        "accuracy": ours[rounds][1],
        "model_sha256": sha256,
        "simulation_sha256": simulated["model_sha256"],
        "same": sha256 == simulated["model_sha256"],
        "rounds_as_in_the_simulation": (other[0] if other else rounds + 1) - 1,
        "promised": not found["left_out"],  # docs/deploy.md: as long as all parties answer in time
    }


def begin(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The evidence to go on with, and whether there is a federation that it is about."""
    settings = {"minutes": options.minutes, "every": options.every, "seed": options.seed, "method": options.method}
    if not options.new and options.evidence.exists() and (options.out / "federation").exists():
        found: dict[str, Any] = json.loads(options.evidence.read_text(encoding="utf-8"))
        if found["settings"] == settings and "result" not in found:
            found.pop("failed", None)
            return found, True
    about = machine(ROOT, f"make soak SOAK='{' '.join(sys.argv[1:])}'" if sys.argv[1:] else "make soak")
    empty: dict[str, Any] = {name: [] for name in ("starts", "faults", "samples", "times", "left_out")}
    return about | {"settings": settings, "seconds": 0.0, "rounds": 0} | empty, False


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--minutes", type=float, default=60.0)
    asked.add_argument("--every", type=float, default=30.0, help="seconds from one fault to the next")
    asked.add_argument("--seed", type=int, default=0, help="of the faults")
    asked.add_argument("--method", default="scaffold", help="with one global model; this one also has state at clients")
    asked.add_argument("--new", action="store_true", help="begin anew, even if there is a soak to go on with")
    asked.add_argument("--out", type=Path, default=ROOT / "runs" / "soak", help="for the folders of the parties")
    asked.add_argument("--evidence", type=Path, default=HERE / "obtained.json")
    options = asked.parse_args()
    if why := missing():
        print(f"soak: {why}; nothing was done", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    found, goes_on = begin(options)
    rounds = f"rounds={max(4, int(60 * options.minutes))}"  # more than are done: a round takes seconds
    config = Config.load(None, [*SETTINGS, rounds, f"algorithm.name={options.method}"])
    folders = options.out / "federation"
    try:
        with Networks(PARTIES, options.out) as networks:
            by = "sch_netem" if networks.netem else "tools/slow_link.py, as this kernel has no sch_netem"
            found["slow"] = f"{1000 * DELAY:.0f} ms and {100 * LOSS:g} % loss each way by {by}"
            made = Federation(folders, networks=networks) if goes_on else Federation.init(folders, config, networks)
            print(f"soak of {options.minutes:g} minutes {'goes on' if goes_on else 'begins'} in {folders}", flush=True)
            with made as federation:
                soak = Soak(options, federation, found)
                try:
                    soak.run()
                finally:
                    soak.save()
                ended = federation.stop("server")["server"]
        found["left_over"] = federation.leftovers()
        found["result"] = result(federation, found, options.out) | {"server_exit": ended}
    except KeyboardInterrupt:
        print("\nsoak: stopped; the same command goes on", flush=True)
        return 130
    except (RuntimeError, TimeoutError) as error:
        found["failed"] = str(error)
        print(f"soak: {error}; logs are in {folders}", file=sys.stderr)
    checkpoint.write_whole(options.evidence, json.dumps(found, indent=1) + "\n")
    options.evidence.with_name("table.md").write_text(table(found), encoding="utf-8")
    print(table(found))
    outcome = found.get("result", {})
    return 0 if outcome and (outcome["same"] or not outcome["promised"]) and not found["left_over"] else 1


if __name__ == "__main__":
    sys.exit(main())
