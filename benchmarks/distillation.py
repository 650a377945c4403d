"""What W3 and W5 get: teachers that have learnt something, and who distils on what in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packs
import torch
from contestants import nets
from torch.nn import functional as F

from headwater.config import Config
from headwater.core.tree import ROOT
from headwater.data.base import Examples
from headwater.training.experiment import prepare


def teachers(path: Path, tree: dict[str, Any], count: int, own: Examples, train: Examples, test: Examples) -> Path:
    """So many teachers, each trained for two epochs on its share of `own`, and a student that they are to teach.

    The student's inputs are `train`, which is the library's reference set at the server.
    """
    experiment = prepare(Config(**tree), data=packs.data_of(train, test))
    told = packs.about(experiment, "server") | {"rounds": 1, "teachers": count, "config": tree}
    arrays = packs.arrays_of(experiment, test) | {"x": train.x.numpy(), "y": train.y.numpy()}
    context, n = experiment.context(), len(train)
    arrays["orders"] = packs.orders(context, (1, "distill", 0, ROOT), n, told["epochs"])
    for number in range(count):
        net = nets.build(told["model"], tuple(told["shape"]), told["classes"])
        net.load_state_dict(context.initial(experiment.model.name, number + 1).named())
        rows = own.take(np.arange(number, len(own), count))
        net.train()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(2):
            for batch in torch.split(torch.arange(len(rows)), 32):
                optimizer.zero_grad()
                F.cross_entropy(net(rows.x[batch]), rows.y[batch]).backward()
                optimizer.step()
        arrays |= packs.state_of(net, f"teacher{number}")
    return packs.write(path, arrays, told)


def feddf(*, clients: int, epochs: int) -> dict[str, Any]:
    """A configuration whose server distils as W3 does; who trains what in it does not matter."""
    return {
        "data": {"name": "arrays", "validation": 0, "reference_size": 100},
        "partition": {"scheme": "iid", "clients": clients, "sectors": 1},
        "model": {"name": "resnet8"},
        "algorithm": {"name": "feddf", "drop_worst": False},
        "local": {"epochs": 0},
        "server": {"epochs": epochs, "batch": 64, "optimizer": "adam", "lr": 1e-3, "mix": "probs"},
        "engine": {"server_threads": 2},  # what is chosen on two cores for a reference set of W3's size
    }


def fedhead_plus(*, clients: int, reference: int, epochs: int) -> dict[str, Any]:
    """One round without early stopping, with the largest client as leader."""
    step = {"epochs": epochs, "batch": 64, "optimizer": "adam", "lr": 1e-3}
    return {
        "rounds": 1,
        "data": {"name": "arrays", "validation": 0, "reference_size": reference},
        "partition": {"scheme": "iid", "clients": clients, "sectors": 2, "assign": "blocks"},
        "model": {"name": "resnet8"},
        "algorithm": {"name": "fedhead+", "leader": "fixed"},
        "local": step,
        "sector": step,
        "server": step,
        "engine": {"workers": 2, "server_threads": 2},
    }


def head_round(path: Path, tree: dict[str, Any], train: Examples, test: Examples) -> Path:
    """The parts of a FedHEAD+ round. Rows count in `x`, which holds the clients' images and then the reference set."""
    experiment = prepare(Config(**tree), data=packs.data_of(train, test))
    told, context, split = packs.about(experiment), experiment.context(), experiment.split
    epochs, home = told["epochs"], experiment.rows
    members = [experiment.tree.team(sector) for sector in experiment.tree.sectors]
    met = [
        [home[c][packs.orders(context, (1, "local_train", 0, c), len(home[c]), epochs)] for c in team]
        for team in members
    ]
    sectors = experiment.tree.sectors
    arrays = packs.arrays_of(experiment, test)
    arrays |= {
        "x": torch.cat([split.train.x, split.reference]).numpy(),
        "whole_x": train.x.numpy(),  # as the library gets them; it sets the reference set aside itself
        "whole_y": train.y.numpy(),
        "orders": np.array(met),  # (sector, place, epoch, step)
        "leader_rows": np.stack([home[team[0]] for team in members]),
        "leader_orders": np.stack(
            [
                packs.orders(context, (1, "distill", 0, sector), len(home[team[0]]), epochs)
                for sector, team in zip(sectors, members, strict=True)
            ]
        ),
        "server_rows": np.arange(len(split.train), len(split.train) + len(split.reference)),
        "server_orders": packs.orders(context, (1, "distill", 1, ROOT), len(split.reference), epochs),
    }
    return packs.write(path, arrays, told | {"config": tree})
