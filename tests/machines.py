"""How state machines are run, by the tests and by `make stateful`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def run(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run a state machine, the same cases each time. What a case raises is raised, after the case was simplified."""
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=QUIET,
        derandomize=True,
    )
    run_state_machine_as_test(machine, settings=limits)
