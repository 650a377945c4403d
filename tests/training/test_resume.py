"""A run that is killed at any moment and carried on ends as one that was not: same model, same rows, same result.

Run as a program, this file trains and kills. It forks from a process in which everything is loaded, so that a life
costs what its rounds cost; the processes of a pool are started afresh as always.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 600.0  # seconds for one life


@dataclass(frozen=True)
class Case:
    """What is trained, and how each life before the last one ends.

    `clock`: at some time. `draft`: while a file is being written. `after 5`: after the checkpoint of round 5. On one
    core, or on a file system in memory, nobody would catch the last two by looking: the life ends itself.
    """

    method: str
    engines: tuple[str, ...]  # of the lives, in turn
    blows: tuple[str, ...]
    seed: int  # of the moments
    sections: dict[str, Any]


@dataclass
class Outcome:
    whole: dict[str, Any]
    killed: list[dict[str, Any]]  # a run that ends before the next blow can fall is followed by another
    kills: int = 0
    resumed_after: list[int] = field(default_factory=list)  # rounds that were done when a life began
    drafts_left: int = 0  # blows that left a file half-written
    litter: list[str] = field(default_factory=list)  # directories that killed pools left behind


ROUNDS = 16
MIXED = ("clock", "draft", "after 5", "clock", "draft", f"after {ROUNDS}", "clock", "draft", "draft")
LOSSY = {"faults": {"dropout": 0.3}}
CASES = {
    "fedhead": Case("fedhead", ("inline",), MIXED, 1, {}),
    "local": Case("local", ("inline",), MIXED, 2, {"partition": {"local_test": 0.2}}),
    "fedavg, lossy": Case(
        "fedavg", ("inline",), MIXED, 3, {"eval_every": 3, "partition": {"participation": 0.6}} | LOSSY
    ),
    "fedhead+, processes": Case("fedhead+", ("pool", "inline", "pool"), ("draft", "clock", "draft"), 4, {}),
    "local, lossy, processes": Case("local", ("inline", "pool"), ("draft", "draft"), 5, LOSSY),
}
QUICK = ("fedhead",)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in CASES])
def test_killed_and_carried_on_is_the_same_as_undisturbed(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    process = subprocess.run(
        [sys.executable, __file__, json.dumps(asdict(case)), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        # One thread: a process with threads should not be forked.
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert process.returncode == 0, process.stderr
    found = Outcome(**json.loads(process.stdout))
    shas = {run["result"]["model_sha256"] for run in found.killed}
    assert shas == {found.whole["result"]["model_sha256"]}
    assert all(run == found.whole for run in found.killed)
    assert found.kills == len(case.blows)
    assert found.litter == []
    if case.blows == MIXED:  # they fell early and late, and some of them while a file was being written
        assert found.drafts_left > 0
        assert {0, 5, ROUNDS} <= set(found.resumed_after)


# -- the program


def drive(case: Case, folder: Path) -> Outcome:
    import toys
    from headwater.training import checkpoint
    from headwater.training.loop import train

    sections: dict[str, Any] = {"rounds": ROUNDS, "local": {"epochs": 2, "batch": 8}} | case.sections
    made = toys.tiny(case.method, **sections)
    train(made)  # loads all that later lives then find loaded
    began = time.monotonic()
    train(made, out=folder / "whole")
    length = time.monotonic() - began
    found = Outcome(summary(folder / "whole"), [])
    chance, out = random.Random(case.seed), folder / "killed"
    lives: list[int] = []
    blows: list[str | None] = [*case.blows, None]
    while blows:
        engine = case.engines[len(lives) % len(case.engines)]
        config = made.config.merged({"engine": {"name": engine, "workers": 2}})
        found.resumed_after.append(rounds_done(out))
        blow, seconds, files = blows[0], chance.uniform(0, length / 2), chance.randint(1, 8)
        life = os.fork()
        if not life:
            signal.alarm(int(PATIENCE))
            after = int(blow.split()[1]) if blow and blow.startswith("after") else None
            if blow == "draft" or after:
                doom(after, files)
            if after or len(lives) % 3:  # a checkpoint a round; every third life writes as often as costs little
                checkpoint.PAUSE = 0
            train(replace(made, config=config), out=out)
            os._exit(0)
        lives.append(life)
        if blow == "clock":
            if engine == "pool":  # not while it starts up, for that takes longer than all the rest
                before = found.resumed_after[-1]
                seen(lambda: rounds_done(out) > before, life)  # noqa: B023
            time.sleep(seconds)
            os.kill(life, signal.SIGKILL)
        _, status = os.waitpid(life, 0)
        if status == signal.SIGKILL and blow is not None:
            found.kills += 1
            found.drafts_left += bool(drafts_in(out))
            blows.pop(0)
        else:
            assert status == 0, f"a life ended with status {status}"
            found.killed.append(summary(out))
            assert len(found.killed) < 20, "blows come too late, time after time"
            shutil.rmtree(out)
            if blow is None:
                blows.pop()
    found.litter = litter(lives)
    return found


def doom(after: int | None, files: int) -> None:
    """This process will be killed after a round's checkpoint, or over the n-th file it writes, half of it there."""
    usual = os.replace

    def replace(draft: Any, path: Any) -> None:
        nonlocal files
        files -= 1
        if after is None and not files:
            os.truncate(draft, os.path.getsize(draft) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        usual(draft, path)
        if after is not None and Path(path).name == f"round-{after:06d}.json":
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace  # type: ignore[assignment]


def seen(so: Callable[[], bool], life: int) -> bool:
    end = time.monotonic() + PATIENCE
    while not so():
        if time.monotonic() > end:
            raise TimeoutError("a life has gone on for too long")
        if os.waitid(os.P_PID, life, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
    return True


def rounds_done(out: Path) -> int:
    return max((int(path.stem.split("-")[1]) for path in (out / "checkpoints").glob("round-*.json")), default=0)


def drafts_in(out: Path) -> list[str]:
    found = []
    for folder in (out, out / "checkpoints", out / "checkpoints" / "values"):
        try:
            found += [name for name in os.listdir(folder) if "draft" in name]
        except OSError:
            continue
    return found


def summary(out: Path) -> dict[str, Any]:
    """All that a run leaves, except times."""
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    result = json.loads((out / "result.json").read_text())
    for found in (result, *rows):
        del found["seconds"]
    return {"result": result, "rows": rows, "partition": json.loads((out / "partition.json").read_text())}


def litter(lives: list[int]) -> list[str]:
    """What killed pools left in shared memory, once their workers had time to notice."""
    from headwater.engines.workers.shared_memory import PREFIX

    def left() -> list[str]:
        roots = {Path("/dev/shm"), Path(tempfile.gettempdir())}
        return [str(f) for root in roots for life in lives for f in root.glob(f"{PREFIX}{life}-*")]

    end = time.monotonic() + PATIENCE
    while left() and time.monotonic() < end:
        time.sleep(0.05)
    return left()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    given |= {name: tuple(given[name]) for name in ("engines", "blows")}
    print(json.dumps(asdict(drive(Case(**given), Path(sys.argv[2])))))
