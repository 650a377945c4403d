"""Headwater as `headwater run` has it where nothing is said about how to run.

No engine section; a directory with rows, time line, checkpoints and the result; after every round an evaluation on the
whole test set and what it means for clients. The engine that follows from this is already up, and the same part is
timed as in `ours`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from contestants.ours import data_of, shortened, timed_run
from contestants.serve import Outcome, Pack, Work, serve
from headwater.config import Config
from headwater.engines import open_engine
from headwater.training.experiment import prepare as experiment_of


def prepare(pack: Pack) -> Work:
    tree, data = unsaid(pack.about["config"]), data_of(pack, None)
    around = open_engine(Config(**tree), [experiment_of(Config(**tree), data=data)])
    engine = around.__enter__()

    def work(rounds: int) -> Outcome:
        ready = experiment_of(Config(**shortened(tree, rounds)), data=data)
        with tempfile.TemporaryDirectory(prefix="headwater-bench-run-") as folder:
            return timed_run(ready, engine, Path(folder) / "run")

    work.close = lambda: around.__exit__(None, None, None)  # type: ignore[attr-defined]
    return work


def unsaid(tree: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what says how to run and how often to evaluate."""
    return {key: value for key, value in tree.items() if key not in ("engine", "eval_every")}


if __name__ == "__main__":
    serve(prepare)
