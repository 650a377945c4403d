"""Where work is done. Every engine gives the same bits; `auto` takes the one that is likely to be done first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headwater.registry import Entry, Registry

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.engines.base import Engine
    from headwater.training.experiment import Experiment

ENGINES = Registry(
    "engine",
    {
        "inline": Entry("headwater.engines.inline:Inline", "one after the other, in this process: the specification"),
        "pool": Entry("headwater.engines.pool:Pool", "worker processes on this machine, one thread each"),
        "ray": Entry("headwater.engines.ray.driver:Ray", "workers on a Ray cluster, on this machine or on many"),
    },
)
PAYS = 4e6  # numbers read by training from which starting workers is worth it: about ten seconds of work


@contextmanager
def open_engine(config: Config, experiments: Sequence[Experiment]) -> Iterator[Engine]:
    """An engine for these experiments, one after the other; closed at the end."""
    name, workers, _ = chosen(config, experiments)
    kind = ENGINES.load(name)
    # Threads of this process are for clients that are trained together; there are none once the engine is closed.
    hands: dict[str, Any] = {"hands" if name == "inline" else "workers": workers}
    if name == "ray":  # how many there can be, the cluster knows
        hands = {"workers": config.engine.workers, "address": config.engine.address}
    engine = kind(**hands, threads=config.engine.threads, memory=config.engine.memory)
    try:
        yield engine
    finally:
        engine.close()


def chosen(config: Config, experiments: Sequence[Experiment]) -> tuple[str, int, str]:
    """The engine for these experiments, its workers, and why it is this one."""
    workers, name = config.engine.workers or cores(), config.engine.name
    if name != "auto":
        return name, workers, "as configured"
    if workers <= 1:
        return "inline", workers, "there is one worker"
    if all(each.stacking.width > 1 for each in experiments):
        return "inline", workers, "clients that are trained together need no worker processes"
    if sum(map(_work, experiments)) > PAYS:
        return "pool", workers, "there is enough to train to be worth starting workers"
    return "inline", workers, "there is too little to train to be worth starting workers"


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(experiment: Experiment) -> float:
    """Numbers that training reads, about."""
    tree, config, local = experiment.tree, experiment.config, experiment.config.local
    rows, clients = sum(tree.sizes[sector] for sector in tree.sectors), len(tree.holders)
    passes = local.get("epochs") or local.get("steps", 1) * local.get("batch", 1) * clients / rows
    numbers = max(64, experiment.split.train.x[0].numel())  # below that a step costs the same
    return float(config.rounds * rows * config.partition.participation * passes * numbers)
