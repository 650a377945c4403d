"""Headwater, as `headwater.training.train` runs it on the engine that it chooses, which is already up.

Timed are the rounds: from the event `start`, when the data is with the workers, to the event `round` of the last one.
An evaluation is in the last round; it has few images here, as nobody else has one inside its time.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from contestants.serve import Outcome, Pack, Work, serve
from headwater.config import Config
from headwater.data.base import Data
from headwater.engines import open_engine
from headwater.experiment import prepare as experiment_of
from headwater.training import Event, train

JUDGED = 100  # test images of the evaluation inside


def prepare(pack: Pack) -> Work:
    return work_of(pack, pack.about["config"])


def work_of(pack: Pack, tree: dict[str, Any]) -> Work:
    few = {name: pack.tensor(name)[:JUDGED] for name in ("x_test", "y_test")}
    names = [str(i) for i in range(pack.about["classes"])]
    x, y = (pack.tensor(f"whole_{name}" if f"whole_{name}" in pack.arrays else name) for name in ("x", "y"))
    data = Data(x, y, few["x_test"], few["y_test"], class_names=names)
    around = open_engine(Config(**tree), [experiment_of(Config(**tree), data=data)])
    engine = around.__enter__()

    def work(rounds: int) -> Outcome:
        asked = tree | {"rounds": max(1, rounds), "eval_every": max(1, rounds)}
        if not rounds:
            asked |= {stage: asked[stage] | {"epochs": 1} for stage in ("local", "sector", "server") if stage in asked}
        marks: list[float] = []

        def watch(event: Event) -> None:
            if event.kind in ("start", "round"):
                marks.append(time.perf_counter())

        ready = experiment_of(Config(**asked), data=data)
        called = time.perf_counter()
        run = train(ready, engine=engine, watch=watch)
        ended = time.perf_counter()
        more = {"with_preparation": (ended - called) / asked["rounds"], "memory": peak()}
        return Outcome((marks[-1] - marks[0]) / asked["rounds"], run.model.state_dict(), more)

    work.close = lambda: around.__exit__(None, None, None)  # type: ignore[attr-defined]
    return work


def peak() -> int:
    """The most that this process and its children held at any time, in MB; shared pages count for each."""
    mine = [os.getpid()]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == mine[0]:
                mine.append(int(folder.name))
        except (OSError, IndexError, ValueError):  # gone meanwhile
            continue
    return sum(_high_water(process) for process in mine) // 1024


def _high_water(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    if len(sys.argv) > 2:  # as many registered clients, of whom as many take part as without it
        clients = int(sys.argv[2])

        def populated(pack: Pack) -> Work:
            tree = pack.about["config"]
            active = tree["partition"]["participation"] * tree["partition"]["clients"]
            part = tree["partition"] | {"clients": clients, "participation": active / clients}
            return work_of(pack, tree | {"partition": part})

        serve(populated)
    else:
        serve(prepare)
