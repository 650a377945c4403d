"""The same question on real workers: FedEED with clients that come and go, rounds overlapping or not.

    python experiments/pipelining/real.py [--pairs 3]

Trains on two worker processes, with `engine.overlap` on and off in turn, and writes beside this file real.csv (a row a
run), real_on.png and real_off.png (who ran when, of the first pair). Both give the same model, which is checked.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from headwater.config import Config
from headwater.engines import open_engine
from headwater.report.timeline import figure
from headwater.training.experiment import prepare
from headwater.training.loop import train
from headwater.training.result import Run

HERE = Path(__file__).parent
ROUNDS, PERIOD = 6, 6.0
SHARES = (0.3, 0.5, 1.0)


def config(share: float, overlap: bool) -> Config:
    """8 of 20 clients active, dealt to 4 cohorts. Waiting for clients, not work, is to be what takes the time."""
    return Config(
        rounds=ROUNDS,
        eval_every=ROUNDS,
        data={"name": "digits"},
        partition={"clients": 20, "sectors": 2, "alpha": 1.0, "participation": 0.4},
        model={"name": "cnn", "widths": [8, 16], "hidden": 32},
        algorithm={"name": "fedeed", "cohorts": 4},
        local={"epochs": 2},
        server={"epochs": 20},
        faults={"availability": share, "period": PERIOD},
        engine={"name": "pool", "workers": 2, "overlap": overlap},
    )


def ahead(run: Run) -> int:
    """Trainings that began before the distillation of the round before had ended."""
    spans = run.timeline
    ended = {span["round"]: span["end"] for span in spans if span["phase"] == "distill"}
    begun = [span for span in spans if span["task"] == "local_train" and span["round"] > 1]
    return sum(span["start"] < ended[span["round"] - 1] for span in begun)


def seconds(run: Run) -> float:
    """From the first job of round 1 to the last of all: starting the workers does not count."""
    spans = [span for span in run.timeline if span["round"] > 0]
    return float(max(span["end"] for span in spans) - min(span["start"] for span in spans))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pairs", type=int, default=3)
    pairs = asked.parse_args().pairs
    rows: list[list[Any]] = []
    made = {(share, on): prepare(config(share, on)) for share in SHARES for on in (True, False)}
    with open_engine(config(1.0, True), [made[1.0, True]]) as engine:
        for share in SHARES:
            for pair in range(pairs):
                models = set()
                for on in (True, False):
                    run = train(made[share, on], engine=engine)
                    models.add(run.result["model_sha256"])
                    rows.append([share, pair, "on" if on else "off", round(seconds(run) / ROUNDS, 3), ahead(run)])
                    print(*rows[-1], flush=True)
                    if share == SHARES[0] and pair == 0:
                        figure(run.timeline, HERE / f"real_{'on' if on else 'off'}.png")
                assert len(models) == 1, "overlap changed a result"
    with (HERE / "real.csv").open("w", newline="", encoding="utf-8") as file:
        heads = ["availability", "pair", "overlap", "seconds_a_round", "trainings_ahead_of_distillation"]
        csv.writer(file, lineterminator="\n").writerows([heads, *rows])


if __name__ == "__main__":
    main()
