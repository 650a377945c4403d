"""Headwater with the settings that make it fast: as many workers as are asked for, no directory, one evaluation.

`headwater.training.loop.train` runs on the engine that it chooses, which is already up. Timed are the rounds: from the
event `start`, when the data is with the workers, to the event `round` of the last one. An evaluation is in the last
round; it has few images here, as nobody else has one inside its time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import headwater  # noqa: F401 (before torch, as a program that uses it has it: it sets how threads wait)
from contestants.serve import Outcome, Pack, Work, measured, serve
from contestants.usage import Meter
from headwater.config import Config
from headwater.data.base import Data
from headwater.engines import open_engine
from headwater.training.experiment import Experiment
from headwater.training.experiment import prepare as experiment_of
from headwater.training.loop import Event, train

JUDGED = 100  # test images of the evaluation inside


def prepare(pack: Pack) -> Work:
    return work_of(pack, pack.about["config"])


def work_of(pack: Pack, tree: dict[str, Any]) -> Work:
    data = data_of(pack, JUDGED)
    around = open_engine(Config(**tree), [experiment_of(Config(**tree), data=data)])
    engine = around.__enter__()

    def work(rounds: int) -> Outcome:
        asked = shortened(tree, rounds)
        return timed_run(experiment_of(Config(**asked, eval_every=asked["rounds"]), data=data), engine)

    work.close = lambda: around.__exit__(None, None, None)  # type: ignore[attr-defined]
    return work


def data_of(pack: Pack, judged: int | None) -> Data:
    """With so many test images, or with all of them."""
    x, y = (pack.tensor(f"whole_{name}" if f"whole_{name}" in pack.arrays else name) for name in ("x", "y"))
    x_test, y_test = (pack.tensor(name)[:judged] for name in ("x_test", "y_test"))
    return Data(x, y, x_test, y_test, class_names=[str(i) for i in range(pack.about["classes"])])


def shortened(tree: dict[str, Any], rounds: int) -> dict[str, Any]:
    """So many rounds and nothing said about evaluations; 0 rounds are one of one epoch, to warm up."""
    asked = {key: value for key, value in tree.items() if key != "eval_every"} | {"rounds": max(1, rounds)}
    if not rounds:
        asked |= {stage: asked[stage] | {"epochs": 1} for stage in ("local", "sector", "server") if stage in asked}
    return asked


def timed_run(ready: Experiment, engine: Any, out: Path | None = None) -> Outcome:
    meter, rounds = Meter(), ready.config.rounds

    def watch(event: Event) -> None:
        if event.kind == "start":
            meter.start()
        elif event.kind == "round" and event.round == rounds:
            meter.stop()

    called = time.perf_counter()
    run = train(ready, out=out, engine=engine, watch=watch)
    whole = (time.perf_counter() - called) / rounds
    return measured(meter, rounds, run.model.state_dict(), with_preparation=whole)


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
