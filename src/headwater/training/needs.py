"""Finds out before a run whether its method needs what `[privacy]` hides."""

from __future__ import annotations

from weakref import WeakValueDictionary

from headwater.engines.base import Engine
from headwater.training.experiment import Experiment

JOBS = 2_000  # client tasks that are rehearsed; what only later rounds need is refused when they come
_checked: WeakValueDictionary[int, Experiment] = WeakValueDictionary()  # by id, since an experiment has no hash


def check_needs(experiment: Experiment, engine: Engine | None = None) -> None:
    """Rehearse a run that hides single values, once. A rehearsal trains nothing.

    Args:
        experiment: the run.
        engine: where it runs. Separate parties have rehearsed it already.

    Raises:
        ConfigError: the method needs single values where they are hidden, or a sum has too few members.
    """
    if experiment.config.privacy.secure == "none" or getattr(engine, "losing", False):
        return
    if _checked.get(id(experiment)) is not experiment:
        from headwater.planning.rehearsal import rehearse  # here, since planning imports the modules of the loop

        rehearse(experiment, JOBS)
        _checked[id(experiment)] = experiment
