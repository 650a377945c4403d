"""What all contestants of a work get: images, split, batches in order and first weights, written once.

Everything is drawn as the library draws it, so that its own run needs no special treatment and the others follow it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwater.config import Config
from headwater.core.rng import stream
from headwater.core.sampling import participants
from headwater.data.base import Data, Examples
from headwater.data.loading import load
from headwater.tasks.task import RunContext, TaskContext
from headwater.training.experiment import Experiment, prepare

CLASSES = 10


class Missing(Exception):  # noqa: N818 (an outcome, not a fault)
    """The sentence why a work cannot be done."""


def images(name: str, count: int, skip: int = 0, quick: bool = False) -> tuple[Examples, Examples]:
    """So many training images of a packed set, and its test images (the first thousand, when it has to be quick)."""
    if not os.environ.get("HEADWATER_DATA"):
        raise Missing(f"HEADWATER_DATA is not set; point it at the directory that holds the packed set {name}")
    data = load(name)
    order = stream(0, "benchmarks", name).permutation(len(data))[skip : skip + count]
    return data.take(order), data.test.take(np.arange(1000)) if quick else data.test


def data_of(train: Examples, test: Examples) -> Data:
    return Data(train.x, train.y, test.x, test.y, class_names=[str(i) for i in range(CLASSES)])


def arrays_of(experiment: Experiment, test: Examples) -> dict[str, np.ndarray]:
    """Images and first weights."""
    train, context = experiment.split.train, experiment.context()
    start = context.initial(experiment.model.name, 0)
    plain = {"x": train.x, "y": train.y, "x_test": test.x, "y_test": test.y}
    named = {f"model/{name}": tensor for name, tensor in start.named().items()}
    return {name: tensor.contiguous().numpy() for name, tensor in (plain | named).items()}


def orders(context: RunContext, key: tuple[Any, ...], n: int, epochs: int) -> np.ndarray:
    """(epoch, step): the numbers from 0 to n - 1 in the order in which a task meets them."""
    rng = TaskContext(context, "", key).rng
    return np.stack([rng.permutation(n) for _ in range(epochs)]) if epochs else np.zeros((0, n), np.int64)


def about(experiment: Experiment, stage: str = "local") -> dict[str, Any]:
    config, spec = experiment.config, experiment.model
    section = getattr(config, stage)
    return {
        "model": {"name": spec.name, **spec.options},
        "shape": list(spec.shape),
        "classes": spec.classes,
        "rounds": config.rounds,
        **{key: section[key] for key in ("batch", "optimizer", "lr", "epochs")},
    }


def write(path: Path, arrays: dict[str, np.ndarray], told: dict[str, Any]) -> Path:
    np.savez(path, about=np.array(json.dumps(told)), **arrays)
    return path


def averaging(path: Path, tree: dict[str, Any], train: Examples, test: Examples) -> Path:
    """Federated averaging over clients of one size."""
    experiment = prepare(Config(**tree), data=data_of(train, test))
    config, context = experiment.config, experiment.context()
    rows = np.stack([experiment.rows[f"c{i}"] for i in range(config.partition.clients)])
    rounds = range(1, config.rounds + 1)
    taking_part = [participants(experiment.tree, config.partition.participation, config.seed, r) for r in rounds]
    met = [
        [
            rows[int(client[1:])][orders(context, (r, "local_train", 0, client), rows.shape[1], config.local["epochs"])]
            for client in clients
        ]
        for r, clients in zip(rounds, taking_part, strict=True)
    ]
    arrays = arrays_of(experiment, test) | {
        "active": np.array([[int(client[1:]) for client in clients] for clients in taking_part]),
        "orders": np.array(met),
    }
    return write(path, arrays, about(experiment) | {"config": tree, "clients": len(rows)})


def plain(path: Path, tree: dict[str, Any], train: Examples, test: Examples) -> Path:
    """Images and first weights alone, for a work that only the library does."""
    like = tree | {"partition": {"scheme": "iid", "clients": 1, "sectors": 1}}
    experiment = prepare(Config(**like), data=data_of(train, test))
    return write(path, arrays_of(experiment, test), about(experiment) | {"config": tree})


def fedavg(*, clients: int, active: int, model: dict[str, Any], rounds: int, batch: int, lr: float) -> dict[str, Any]:
    """A configuration of federated averaging with nothing set aside and one evaluation at the end."""
    return {
        "seed": 0,
        "rounds": rounds,
        "eval_every": rounds,
        "data": {"name": "arrays", "validation": 0, "reference_size": 0},
        "partition": {"scheme": "iid", "clients": clients, "sectors": 1, "participation": active / clients},
        "model": model,
        "algorithm": {"name": "fedavg"},
        "local": {"epochs": 1, "batch": batch, "optimizer": "sgd", "lr": lr},
        "engine": {"workers": 2},
    }


def state_of(net: torch.nn.Module, name: str) -> dict[str, np.ndarray]:
    return {f"{name}/{key}": tensor.numpy() for key, tensor in net.state_dict().items()}
