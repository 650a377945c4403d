"""SIGKILL at random moments, over all commands that write; then the same command again, and the same result.

    make kills                                 KILLS="--kills 20 run compare" for less
    python proof/kills.py [--kills N] [--seed N] [--out FILE] [COMMAND ...]

Every piece of work is done once undisturbed. Then it is begun in an empty place and killed up to three times, each time
with all of its processes, at a moment drawn at random: half of them by the clock, half of them at a change of a file.
After that the same command (for a run, also `headwater resume`) has to end well, what it leaves has to be the same as
undisturbed, and every file of it has to be readable. Commands run in forks of this process, which has loaded the
library already. Writes kills.json; exit status 1 if a result differs or a command is stuck.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stamps import HERE, stamp, write

LONG = 600.0  # seconds after which a command counts as stuck
MOST = 3  # kills of one piece of work
TICK = 0.002  # seconds between two looks at files
SETS = ("data.fraction=0.2", "partition.clients=4", "partition.sectors=2", "partition.alpha=1.0", "model.name=mlp")
SETS = (*SETS, "model.hidden=[16]", "local.epochs=1", "engine.name=inline")
TABLE = """\
# Two methods on the digits
preset = "demo"
seeds = [0]
[[row]]
name = "FedAvg"
set = { algorithm = { name = "fedavg" } }
[[row]]
name = "FedProx"
set = { algorithm = { name = "fedprox" } }
[[column]]
name = "digits"
set = { rounds = 2, data = { fraction = 0.2 }, partition = { clients = 4 }, local = { epochs = 1 } }
"""
DRAFTS = ("*.draft", "*.part")  # what a killed process leaves; nothing reads it
Facts = dict[str, Any]


def sets(*more: str) -> list[str]:
    return [word for each in (*SETS, *more) for word in ("--set", each)]


@dataclass(frozen=True)
class Work:
    """A command that writes.

    Args:
        name: for the table.
        words: the command, given the place; several commands are done one after another.
        facts: what must be the same, given the place.
        again: the command after a kill, if it is not the same.
        before: makes what the command reads, once.
        done_before: whether a command may answer that its part was done before (status 2).
        weight: its share of all kills.
    """

    name: str
    words: Callable[[Path], Sequence[Sequence[str]]]
    facts: Callable[[Path], Facts]
    again: Callable[[Path], Sequence[Sequence[str]]] | None = None
    weight: int = 1
    before: Sequence[str] = field(default=())
    done_before: bool = False


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def of_runs(place: Path) -> Facts:
    """Hashes, accuracies and bytes of all runs below a place."""
    found: Facts = {}
    for path in sorted(place.rglob("result.json")):
        name = str(path.parent.relative_to(place))
        result = json.loads(path.read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in (path.parent / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
        found[name] = {
            "model_sha256": result["model_sha256"],
            "file": sha256((path.parent / "model.safetensors").read_bytes()),
            "ledger": sha256(json.dumps(result["ledger"], sort_keys=True).encode()),
            "rows": [[row["round"], row.get("accuracy"), row["bytes"]] for row in rows],
            "split": json.loads((path.parent / "partition.json").read_text(encoding="utf-8"))["sha256"],
        }
    return found


def of_files(*names: str) -> Callable[[Path], Facts]:
    """Hashes of files below a place, by patterns."""

    def facts(place: Path) -> Facts:
        paths = [
            path for name in names for path in sorted(place.rglob(name)) if path.is_file() and not hidden(path, place)
        ]
        return {str(path.relative_to(place)): sha256(path.read_bytes()) for path in paths}

    return facts


def of_tuning(place: Path) -> Facts:
    found = json.loads((place / "tune.json").read_text(encoding="utf-8"))
    return {"best": found["best"], "rows": [[row["settings"], row["validation_accuracy"]] for row in found["rows"]]}


def of_export(place: Path) -> Facts:
    import torch

    module = torch.jit.load(str(place / "model.pt"))  # type: ignore[no-untyped-call]
    return {name: sha256(tensor.numpy().tobytes()) for name, tensor in module.state_dict().items()}


def of_plan(place: Path) -> Facts:
    return {"keys": sorted(json.loads((place / "plan.json").read_text(encoding="utf-8")))}


def of_federation(place: Path) -> Facts:
    """What all parties agree on is the same, and every folder can be opened."""
    from headwater.deploy.folder import PartyFolder

    top = place / "federation"
    parties = sorted(path.parent for path in top.glob("*/party.toml"))
    for party in parties:
        PartyFolder.open(party)
    told = {"parties": [party.name for party in parties]}
    return told | of_files("federation.json", "public.value", "party.toml", "data.npz")(top)


def of_keys(place: Path) -> Facts:
    """All parties have keys that their approval names; which keys they are is drawn anew each time."""
    facts = of_federation(place)
    return {"parties": facts["parties"], "agreed": len({value for key, value in facts.items() if "federation" in key})}


def enrolment(place: Path) -> list[list[str]]:
    """Keys of a federation: every party asks, the operator approves, every party installs."""
    top = place / "federation"
    parties = sorted(path.parent for path in top.glob("*/party.toml"))
    commands = [["deploy", "enrol", str(party)] for party in parties]
    requests = [str(party / f"{party.name}.request.json") for party in parties]
    commands.append(["deploy", "approve", str(top), *requests])
    return commands + [["deploy", "enrol", str(party), "--approval", str(top / "approval.json")] for party in parties]


def works(given: Path) -> list[Work]:
    """All pieces of work.

    Args:
        given: a place with a finished run in `run`, and `table.toml`.
    """
    run, table = given / "run", given / "table.toml"
    training = ["run", "fedavg", "--rounds", "3", *sets(), "--quiet", "--out"]
    two = ["fedavg", "hfedavg", "--rounds", "2", *sets(), "--quiet", "--out"]
    grid = ["--grid", "local.lr=0.01,0.1", "--rounds", "2", *sets(), "--quiet", "--out"]
    pooled = ["run", "fedhead", "--rounds", "2", *sets("engine.name=pool", "engine.workers=2"), "--quiet", "--out"]
    init = ["deploy", "init", "fedavg", *sets(), "--quiet", "--out"]

    def begin(at: Path) -> list[list[str]]:
        return [[*training, str(at / "run")]]

    return [
        Work("run", begin, of_runs, weight=6),
        Work(
            "resume",
            begin,
            of_runs,
            lambda at: [
                ["resume", str(at / "run"), "--quiet"] if (at / "run").exists() else [*training, str(at / "run")]
            ],
            weight=4,
        ),
        Work("run, pool", lambda at: [[*pooled, str(at / "run")]], of_runs, weight=2),
        Work("compare", lambda at: [["compare", *two, str(at / "both")]], of_runs, weight=4),
        Work("sweep", lambda at: [["sweep", "fedavg", *grid, str(at / "sweep"), "--workers", "1"]], of_runs, weight=3),
        Work("tune", lambda at: [["tune", "fedavg", *grid, str(at)]], of_tuning, weight=3),
        Work(
            "reproduce",
            lambda at: [["reproduce", str(table), "--quiet", "--out", str(at / "table"), "--workers", "1"]],
            lambda at: of_runs(at) | of_files("*.csv")(at),
            weight=3,
        ),
        Work(
            "report",
            lambda at: [["report", str(run), "--out", str(at)]],
            of_files("summary.csv", "summary.md"),
            weight=2,
        ),
        Work("partition", lambda at: [["partition", *sets(), "--out", str(at)]], of_files("partition.json"), weight=2),
        Work("plan", lambda at: [["plan", "fedavg", *sets(), "--out", str(at)]], of_plan),
        Work(
            "predict",
            lambda at: [["predict", str(run), str(given / "rows.npz"), "--out", str(at / "rows.csv")]],
            of_files("rows.csv"),
            weight=2,
        ),
        Work(
            "export",
            lambda at: [["export", str(run), "--to", "torchscript", "--out", str(at / "model.pt")]],
            of_export,
            weight=2,
        ),
        Work("new", lambda at: [["new", str(at / "mine")]], of_files("[!.]*.*"), done_before=True),
        Work(
            "deploy init",
            lambda at: [[*init, str(at / "federation")]],
            of_federation,
            lambda at: [[*init, str(at / "federation"), "--force"]],  # without it, keys are never replaced
            weight=3,
        ),
        Work("keys", enrolment, of_keys, weight=3, before=[*init, "federation", "--enrol"], done_before=True),
    ]


def begun(words: Sequence[str], log: Path) -> int:
    """Begin a command in a process of its own group. Returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:  # in the child
        os.setsid()
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        from headwater.cli.app import main

        print("$ headwater", *words, flush=True)
        status = main(words)
        sys.stdout.flush()
        os._exit(status)
    except BaseException:
        os._exit(1)


def ended(pid: int, until: float) -> int | None:
    """The exit status of a process; None if it still runs at that time."""
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(TICK)
    return None


def end(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def look(place: Path) -> int:
    """A number that changes with the files of a place."""
    seen = []
    for folder, _, names in os.walk(place):
        for name in names:
            with suppress(OSError):  # it is gone by now
                about = os.stat(f"{folder}/{name}")
                seen.append((name, about.st_size, about.st_mtime_ns))
    return hash(tuple(seen))


def changes(place: Path, pid: int) -> tuple[int, int | None]:
    """How often files changed until a process ended, and its exit status."""
    count, before, until = 0, look(place), time.monotonic() + LONG
    while (status := ended(pid, min(until, time.monotonic() + 2 * TICK))) is None and time.monotonic() < until:
        now = look(place)
        count, before = count + (now != before), now
    return count, status


def killed(place: Path, pid: int, rng: random.Random, seconds: float, count: int) -> bool:
    """Kill a process at a moment drawn at random; False if it had ended before."""
    if rng.random() < 0.5 or not count:
        if ended(pid, time.monotonic() + rng.uniform(0.0, 1.1 * seconds)) is not None:
            return False
    else:
        wanted, before, until = rng.randint(1, count), look(place), time.monotonic() + LONG
        while wanted and time.monotonic() < until:
            if ended(pid, time.monotonic() + TICK) is not None:
                return False
            now = look(place)
            wanted, before = wanted - (now != before), now
        time.sleep(rng.choice((0.0, 0.0, 0.001, 0.01)))
    end(pid)
    return True


def hidden(path: Path, place: Path) -> bool:
    """Whether a file is a draft, or in one."""
    return any(Path(part).match(pattern) for part in path.relative_to(place).parts for pattern in DRAFTS)


def unreadable(place: Path) -> list[str]:
    """Files of a place that are cut or damaged."""
    from safetensors import safe_open

    odd = []
    for path in (path for path in sorted(place.rglob("*")) if path.is_file() and not hidden(path, place)):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".jsonl":
                [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            elif path.suffix == ".toml":
                tomllib.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                with safe_open(str(path), framework="pt") as opened:
                    assert list(opened.keys())
        except Exception as error:
            odd.append(f"{path.relative_to(place)}: {type(error).__name__}: {error}")
    return odd


class Killer:
    """Does work and kills it.

    Args:
        top: an empty place.
        rng: draws the moments.
    """

    def __init__(self, top: Path, rng: random.Random) -> None:
        self.top, self.rng = top, rng
        self.log = top / "log"

    def whole(
        self, commands: Sequence[Sequence[str]], place: Path, fine: Sequence[int] = (0,)
    ) -> tuple[float, int, int | None]:
        """Do commands undisturbed. Returns seconds, how often files changed, and the first bad exit status."""
        start, count = time.monotonic(), 0
        for words in commands:
            more, status = changes(place, begun(words, self.log))
            count += more
            if status not in fine:
                return time.monotonic() - start, count, status if status is not None else -1
        return time.monotonic() - start, count, 0

    def fresh(self, work: Work) -> Path:
        place = Path(tempfile.mkdtemp(dir=self.top))
        if work.before:
            *words, name, last = work.before
            _, _, status = self.whole([[*words, str(place / name), last]], place)
            assert status == 0, self.log.read_text()[-2000:]
        return place

    def round(self, work: Work, kills: int) -> dict[str, Any]:
        """Kill a piece of work so often, each beginning in an empty place up to `MOST` times."""
        place = self.fresh(work)
        seconds, count, status = self.whole(work.words(place), place)
        assert status == 0, f"{work.name} failed undisturbed: {self.log.read_text()[-2000:]}"
        wanted = work.facts(place)
        assert wanted, f"{work.name} leaves nothing to compare"
        shutil.rmtree(place)
        told: dict[str, Any] = {"kills": 0, "began": 0, "too_late": 0, "same": 0, "drafts": 0, "findings": []}
        while told["kills"] < kills:
            place = self.fresh(work)
            told["began"] += 1
            moments = []
            for number in range(min(MOST, kills - told["kills"])):
                commands = (work.words if not number or work.again is None else work.again)(place)
                moment = self.disturbed(commands, place, seconds, count)
                if moment is None:
                    told["too_late"] += 1
                    break
                moments.append(moment)
                told["kills"] += 1
            fine = (0, 2) if work.done_before else (0,)
            _, _, status = self.whole((work.again or work.words)(place), place, fine)
            found = self.judged(work, place, status, wanted)
            if found:
                told["findings"].append({"killed": moments, "what": found})
                print(f"{work.name}: killed at {moments}: {found}", flush=True)
            else:
                told["same"] += 1
            told["drafts"] += sum(len(list(place.rglob(pattern))) for pattern in DRAFTS)
            shutil.rmtree(place, ignore_errors=True)
        return told

    def disturbed(self, commands: Sequence[Sequence[str]], place: Path, seconds: float, count: int) -> str | None:
        """Do commands, one of which is killed. Returns which, or None if none was."""
        at = self.rng.randrange(len(commands))
        for number, words in enumerate(commands):
            pid = begun(words, self.log)
            if number < at:
                changes(place, pid)
                continue
            share = len(commands)
            if killed(place, pid, self.rng, seconds / share, count // share):
                return f"{words[0]} ({number + 1} of {len(commands)})"
        return None

    def judged(self, work: Work, place: Path, status: int | None, wanted: Facts) -> str:
        if status != 0:
            return f"the command ends with status {status}: {self.log.read_text(errors='replace')[-400:]}"
        try:
            got = work.facts(place)
        except Exception as error:
            return f"what it left cannot be read: {type(error).__name__}: {error}"
        if got != wanted:
            odd = [key for key in {**wanted, **got} if wanted.get(key) != got.get(key)]
            return f"another result: {odd[:3]}"
        return "; ".join(unreadable(place))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--carry-on", action="store_true", help="leave out commands that FILE has already")
    parser.add_argument("--out", type=Path, default=HERE / "kills.json")
    parser.add_argument("commands", nargs="*", metavar="COMMAND")
    options = parser.parse_args()
    os.environ.pop("HEADWATER_DEBUG", None)
    from headwater.cli.app import main as warm

    with redirect_stdout(io.StringIO()):
        warm(["list", "models"])
    import torch  # noqa: F401 (forks have it)

    import headwater.planning
    import headwater.report.figures
    import headwater.training.loop  # noqa: F401

    known = json.loads(options.out.read_text(encoding="utf-8"))["works"] if options.out.exists() else {}
    found = stamp(f"python proof/kills.py --kills {options.kills} --seed {options.seed}")
    found["works"] = known if options.carry_on or options.commands else {}
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        os.chdir(top)
        (top / "table.toml").write_text(TABLE, encoding="utf-8")
        killer = Killer(top, random.Random(options.seed))
        _, _, status = killer.whole([["run", "fedavg", "--rounds", "2", *sets(), "--out", str(top / "run")]], top)
        assert status == 0, killer.log.read_text()
        _rows(top / "rows.npz")
        chosen = [work for work in works(top) if not options.commands or work.name in options.commands]
        weights = sum(work.weight for work in chosen)
        left = options.kills
        for at, work in enumerate(chosen):
            kills = left if at == len(chosen) - 1 else max(1, round(options.kills * work.weight / weights))
            kills = min(kills, left)
            left -= kills
            if not kills or (options.carry_on and known.get(work.name, {}).get("kills", 0) >= kills):
                continue
            start = time.monotonic()
            told = killer.round(work, kills)
            found["works"][work.name] = told | {"seconds": round(time.monotonic() - start)}
            print(f"{work.name}: {told['kills']} kills, {told['same']} of {told['began']} the same", flush=True)
            keys = ("kills", "began", "same")
            found["total"] = {key: sum(each[key] for each in found["works"].values()) for key in keys}
            write(options.out, found)
    return 0 if all(not each["findings"] for each in found["works"].values()) else 1


def _rows(file: Path) -> None:
    import numpy as np

    np.savez(file, x=np.linspace(-1, 1, 5 * 64, dtype=np.float32).reshape(5, 1, 8, 8))


if __name__ == "__main__":
    sys.exit(main())
