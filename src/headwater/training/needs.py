"""Finds out before a run whether its method needs what `[privacy]` hides."""

from __future__ import annotations

from headwater.engines.base import Engine
from headwater.training.experiment import Experiment


def check_needs(experiment: Experiment, engine: Engine | None) -> None:
    """Rehearse a run that hides single values. A rehearsal trains nothing.

    Args:
        experiment: the run.
        engine: where it runs. Separate parties have rehearsed it already.

    Raises:
        ConfigError: the method needs single values where they are hidden, or a sum has too few members.
    """
    if experiment.config.privacy.secure != "none" and not getattr(engine, "losing", False):
        from headwater.planning.rehearsal import rehearse  # here, since it uses the modules that the loop uses

        rehearse(experiment)
