"""Clients that join a run after it has begun: what they get before their first round.

A newcomer gets what the method's `init` gives to a client before round 1, computed with the random streams of round 0,
so that it has the values that it would have had from the start. `Method.admit` adds them to the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headwater.core.federation import SERVER, Federation, Located
from headwater.core.membership import Newcomer, newcomers, with_newcomers
from headwater.tasks.average import initial
from headwater.training.evaluation import tests_for
from headwater.training.experiment import Experiment
from headwater.training.opening import charge_preparation

NAMES = 1_000_000  # more than the names of a round: newcomers' values must not take names of the first set-up


class Arrivals:
    """Who joins a run in which round. A simulation knows it beforehand; a server overrides `before_round`.

    Args:
        joined: clients that join, in the order of their rounds. In the experiment's tree they have size 0.
    """

    def __init__(self, joined: Iterable[Newcomer] = ()) -> None:
        self.joined = tuple(joined)

    def before_round(self, round: int) -> None:
        """Called before a round is begun; may add clients to `joined` that take part from this round on."""


def grown(fed: Federation, sizes: Mapping[str, int]) -> Federation:
    """The federation with these sizes of clients."""
    return replace(fed, tree=fed.tree.with_sizes(sizes)) if sizes else fed


def admit(
    experiment: Experiment, fed: Federation, state: Any, tests: Located, arrivals: Iterable[Newcomer], round: int
) -> tuple[Federation, Any, Located]:
    """Take in the clients that join with a round. Submits what they get; does not wait.

    Args:
        fed: the federation before the round.
        state: the method's state before the round.
        tests: the common test set at clients, from `tests_for`.
        arrivals: all clients that join, in this or another round.
        round: the round.

    Returns:
        The federation, the state and the tests with them.

    Raises:
        ConfigError: the method cannot take in clients.
    """
    sizes = newcomers(arrivals, round)
    if not sizes:
        return fed, state, tests
    whole = grown(fed, sizes)
    session, own_tests = fed.session, experiment.config.partition.local_test > 0
    session.calls.clear()
    session.calls[""] = NAMES * round
    clients = whole.tree.in_order(sizes)
    few = replace(whole, round=0, clients=clients, seats={}, sat=frozenset(), purpose="setup")
    charge_preparation(experiment, few, exchange=False)
    first = experiment.method.init(few, few.run(initial, at=SERVER, arch=experiment.model.name))
    state = experiment.method.admit(few, state, first)
    return whole, state, with_newcomers(tests, tests_for(few, first, own_tests))
