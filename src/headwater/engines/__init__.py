"""Where work is done. Every engine gives the same bits; `auto` takes the one that is likely to be done first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwater.registry import Entry, Registry

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.engines.base import Engine
    from headwater.experiment import Experiment

ENGINES = Registry(
    "engine",
    {
        "inline": Entry("headwater.engines.inline:Inline", "one after the other, in this process: the specification"),
        "pool": Entry("headwater.engines.pool:Pool", "worker processes on this machine, one thread each"),
    },
)
PAYS = 4e6  # numbers read by training from which starting workers is worth it: about ten seconds of work


@contextmanager
def open_engine(config: Config, experiments: Sequence[Experiment]) -> Iterator[Engine]:
    """An engine for these experiments, one after the other; closed at the end."""
    workers = config.engine.workers or os.cpu_count() or 1
    name = config.engine.name
    if name == "auto":
        name = "pool" if workers > 1 and sum(map(_work, experiments)) > PAYS else "inline"
    kind = ENGINES.load(name)
    engine = kind(threads=config.engine.threads) if name == "inline" else kind(workers, threads=config.engine.threads)
    try:
        yield engine
    finally:
        engine.close()


def _work(experiment: Experiment) -> float:
    split, local = experiment.split, experiment.config.local
    rows = sum(experiment.tree.client_sizes.values())
    passes = local.get("epochs") or local.get("steps", 1) * local.get("batch", 1) * len(experiment.tree.holders) / rows
    numbers = max(64, split.train.x[0].numel())  # below that a step costs the same
    return float(experiment.config.rounds * rows * passes * numbers)
