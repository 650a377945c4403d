"""Engines: where jobs are executed. All return the same bits; `auto` chooses the one that is likely to be fastest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwater.errors import ConfigError
from headwater.registry import Info, Registry

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.engines.base import ConfiguredEngine, Engine
    from headwater.training.experiment import Experiment

ENGINES: Registry[Info] = Registry("engine", "headwater.engines")
POOL_PAYS = 4e6  # numbers read by training from which starting worker processes pays: about ten seconds of work


@contextmanager
def open_engine(config: Config, experiments: Sequence[Experiment]) -> Iterator[Engine]:
    """Open the configured engine, and close it at the end of the `with`.

    Args:
        config: its section `engine` is used.
        experiments: what the engine will run, one after the other; `engine.name = "auto"` is decided by them.
    """
    name, workers, _ = choose_engine(config, experiments)
    engine = engine_class(name).from_config(config.engine, workers)
    try:
        yield engine
    finally:
        engine.close()


def engine_class(name: str) -> type[ConfiguredEngine]:
    """The class of a listed engine, or of "package.module:Name".

    Args:
        name: of the engine.

    Raises:
        ConfigError: it is not an engine.
    """
    kind: type[ConfiguredEngine] = ENGINES.load(name)
    if not hasattr(kind, "from_config"):
        raise ConfigError(
            f"engine.name {name!r} has no class method from_config(options, workers); "
            "see ConfiguredEngine in headwater.engines.base"
        )
    return kind


def choose_engine(config: Config, experiments: Sequence[Experiment]) -> tuple[str, int, str]:
    """Choose an engine.

    Args:
        config: its section `engine` is used.
        experiments: what the engine will run.

    Returns:
        Its name, the number of its workers, and the reason for this choice.
    """
    workers, name = config.engine.workers or available_cpus(), config.engine.name
    if name != "auto":
        return name, workers, "as configured"
    from headwater.tasks.devices import CPU, meant  # not before it is needed, since it loads torch

    if meant(config.engine.device)[0] != CPU:
        return "inline", 1, "one process keeps a GPU busy; several can share it with 'pool'"
    if workers <= 1:
        return "inline", workers, "there is one worker"
    if all(each.stacking.way == "hand" for each in experiments):  # the only way that threads share
        return "inline", workers, "clients that are trained together need no worker processes"
    if sum(map(_work, experiments)) > POOL_PAYS:
        return "pool", workers, "there is enough to train to be worth starting workers"
    return "inline", workers, "there is too little to train to be worth starting workers"


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(experiment: Experiment) -> float:
    """Estimated count of numbers that training reads."""
    tree, config, local = experiment.tree, experiment.config, experiment.config.local
    rows, clients = sum(tree.sizes[sector] for sector in tree.sectors), len(tree.holders)
    passes = local.get("epochs") or local.get("steps", 1) * local.get("batch", 1) * clients / rows
    numbers = max(64, experiment.split.train.x[0].numel())  # below that a step costs the same
    return float(config.rounds * rows * config.partition.participation * passes * numbers)
