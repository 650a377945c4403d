"""Opens a run: its context for tasks, and the first view of its federation. Used by training, planning and pictures."""

from __future__ import annotations

from dataclasses import replace

import torch

from headwater.config.secure import secure_sums
from headwater.core.federation import Federation
from headwater.core.ledger import Ledger
from headwater.core.precompute import Precompute
from headwater.core.session import Session
from headwater.engines.base import Engine
from headwater.specs import LocalSpec
from headwater.tasks.attack import attack_of, poisoned
from headwater.tasks.batched.policy import NUMBERS
from headwater.tasks.devices import CPU
from headwater.tasks.frozen_part import frozen_size
from headwater.tasks.privacy import privacy_of
from headwater.tasks.robust import Robust
from headwater.tasks.task import RunContext
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
