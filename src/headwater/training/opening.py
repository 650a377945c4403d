"""Opens a run: its context for tasks, the first view of its federation, and a check of what `[privacy]` hides.

A client that joins later gets what the method's `init` gives to a client before round 1, computed with the random
streams of round 0, so that it has the values that it would have had from the start. `Method.admit` adds them to the
state. Used by training, planning and pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import torch

from headwater.config.privacy import secure_sums
from headwater.core.federation import SERVER, Federation, Located
from headwater.core.ledger import Ledger
from headwater.core.membership import Newcomer, newcomers, with_newcomers
from headwater.core.session import Session
from headwater.core.submission import Precompute
from headwater.engines.base import Engine
from headwater.specs import LocalSpec
from headwater.tasks.attack import attack_of, poisoned
from headwater.tasks.average import initial
from headwater.tasks.batched.policy import NUMBERS
from headwater.tasks.devices import CPU
from headwater.tasks.frozen_part import frozen_size
from headwater.tasks.privacy import privacy_of
from headwater.tasks.robust import Robust
from headwater.tasks.task import RunContext
from headwater.training.evaluation import tests_for
from headwater.training.experiment import Experiment

SMALL = 2.5e8  # multiplications; clients that need fewer share a job, because a job has an overhead of this order
BACKWARD = 3  # cost of a gradient step on a row, in forward passes over it


def run_context(experiment: Experiment, device: torch.device = CPU) -> RunContext:
    """Return the context of this run's tasks, with simulated faults and attacks, and the rules of fusion.

    Args:
        experiment: the run.
        device: where tasks compute.
    """
    config, context = experiment.config, experiment.context()
    faults, engine, robust, wanted = config.faults, config.engine, config.robust, config.attack
    attack = attack_of(wanted.kind, wanted.share, wanted.strength, config.seed, experiment.tree)
    if attack is not None:
        split = context.split
        train = poisoned(attack, split.train, context.rows, split.classes, wanted.poisoned)
        context = replace(context, split=replace(split, train=train), attack=attack)
    return replace(
        context,
        method=experiment.config.method,
        bad_update=faults.bad_update,
        causes=experiment.method.likely_causes(),
        availability=faults.availability,
        period=faults.period,
        stack=experiment.stacking.way,
        server_threads=engine.server_threads,
        sector_of=experiment.tree.sector_of,
        device=device,
        precision=engine.precision,
        device_memory=engine.device_memory,
        robust=(Robust(robust.sector, robust.share), Robust(robust.server, robust.share)),
        privacy=privacy_of(config.privacy),
    )


def charge_preparation(experiment: Experiment, fed: Federation, exchange: bool = True) -> None:
    """Charge what parties exchange before the first round beside the method's own moves.

    These are statistics of the data and, once for each sector and for each client, what is frozen in the model that it
    trains. A sector gets a copy too, since it passes models on and may teach.

    Args:
        experiment: the run.
        fed: the view of those who prepare: all at the start of a run, or clients that join it.
        exchange: whether statistics of the data are exchanged.
    """
    ledger, found = fed.session.ledger, experiment.exchange
    if found is not None and exchange:
        ledger.prepare(found.name, found.up, found.down)
    archs = fed.tree.archs
    for arch in archs:
        if not (size := frozen_size(experiment.models[arch])):
            continue
        clients = fed.clients if len(archs) == 1 else [c for c in fed.clients if fed.tree.arch(c) == arch]
        sectors = fed.sectors if len(archs) == 1 else {fed.tree.sector_of[client] for client in clients}
        ledger.provide("frozen", size, len(sectors), len(clients))


def open_federation(experiment: Experiment, engine: Engine, context: RunContext) -> Federation:
    """Return the first view of a run, with a new session. Only the experiment decides which jobs are grouped.

    Args:
        experiment: the run.
        engine: where its tasks run; the caller starts it.
        context: what `run_context` gave for the experiment.
    """
    config, precompute = experiment.config, Precompute.of(context)
    specs = [value for value in vars(experiment.method).values() if isinstance(value, LocalSpec)]
    epochs = max((spec.epochs or 0 for spec in specs), default=0)  # with `steps`, the cost per row is not known
    session = Session(
        engine,
        Ledger(),
        config.seed,
        dropout=config.faults.dropout,
        width=experiment.stacking.width,
        rows=int(SMALL / (BACKWARD * precompute.work * epochs)) if precompute.work and epochs else 0,
        small=NUMBERS // max(1, experiment.model.count()),  # at most as many models as in a batched computation
        precompute=precompute,
        secure=secure_sums(config.privacy),
    )
    return Federation(experiment.tree, session, experiment.tree.holders, purpose="setup")


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
    """Add the clients that join in a round. Submits what they get; does not wait.

    Args:
        fed: the federation before the round.
        state: the method's state before the round.
        tests: the common test set at clients, from `tests_for`.
        arrivals: all clients that join, in this or another round.
        round: the round.

    Returns:
        The federation, the state and the tests with them.

    Raises:
        ConfigError: the method cannot add clients to a run.
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
