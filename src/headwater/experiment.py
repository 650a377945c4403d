"""From a configuration to all that a run needs; what was left open is filled in to suit the data and the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headwater.algorithms import ALGORITHMS
from headwater.algorithms.base import Algorithm
from headwater.config import Config, method_from, spec_from
from headwater.data.base import Data, Split, carve, load
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.partition import PARTITIONS
from headwater.partition.base import Partition
from headwater.rng import stream
from headwater.specs import DistillSpec, LocalSpec
from headwater.stages.site import Context
from headwater.topology.assign import assign
from headwater.topology.tree import Tree

Rows = Mapping[str, np.ndarray]
LEARNING_RATE = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}


@dataclass(frozen=True)
class Experiment:
    config: Config  # resolved: nothing is left to be filled in
    split: Split
    partition: Partition
    tree: Tree
    model: ModelSpec
    method: Algorithm
    rows: Rows
    test_rows: Rows
    class_names: tuple[str, ...]

    def context(self) -> Context:
        return Context(self.split, self.rows, self.test_rows, {self.model.name: self.model}, self.config.seed)


def prepare(config: Config, *, data: Data | None = None, model: Callable[[], nn.Module] | None = None) -> Experiment:
    """Load and carve the data, split it, build the tree, the model's spec and the method."""
    folder = Path(config.data.dir) if config.data.dir else None
    loaded = data if data is not None else load(config.data.name, folder)
    split = carve(
        loaded,
        fraction=config.data.fraction,
        validation=config.data.validation,
        reference=config.data.reference,
        reference_size=config.data.reference_size,
        data_dir=folder,
        seed=config.seed,
    )
    partition = divide(config, split)
    rows, test_rows = _own_tests(partition, config)
    tree = Tree.of([len(rows[f"c{i}"]) for i in range(partition.clients)], partition.sectors)
    spec = ModelSpec(
        config.model.name, split.shape, split.classes, config.model.options, model, buffers=config.model.buffers
    )
    spec.outline()  # a model that cannot be built is refused before anything runs
    kind = ALGORITHMS.load(config.method)
    built = method_from(kind, config.algorithm, _stages(config, kind, split))
    resolved = config.merged({"model": {"name": spec.name}} if model is None else {})
    chosen = {
        name: getattr(built, name) for name in ("local", "sector", "server") if getattr(built, name, None) is not None
    }
    resolved = resolved.merged({name: asdict(spec) for name, spec in chosen.items()})
    _check(chosen, split, built)
    return Experiment(resolved, split, partition, tree, spec, built, rows, test_rows, loaded.class_names)


def divide(config: Config, split: Split) -> Partition:
    """Which client holds which samples, and which sector it belongs to: a function of data, seed and configuration."""
    labels = split.train.y.numpy()
    scheme = PARTITIONS.load(config.partition.scheme)(**config.partition.options)
    indices = scheme.split(labels, config.partition.clients, stream(config.seed, "partition"))
    counts = np.stack([np.bincount(labels[i], minlength=split.classes) for i in indices])
    sectors = assign(config.partition.assign, counts, config.partition.sectors, stream(config.seed, "sectors"))
    return Partition(tuple(indices), sectors)


def _own_tests(partition: Partition, config: Config) -> tuple[Rows, Rows]:
    """Each client's rows for training and for its own test; a client always keeps a row to train on."""
    rows, tests = {}, {}
    for number, indices in enumerate(partition.indices):
        held = min(round(config.partition.local_test * len(indices)), max(0, len(indices) - 1))
        order = stream(config.seed, "local_test", number).permutation(len(indices))
        tests[f"c{number}"] = np.sort(indices[order[:held]])
        rows[f"c{number}"] = np.sort(indices[order[held:]])
    return rows, tests


def _stages(config: Config, kind: Any, split: Split) -> dict[str, LocalSpec | DistillSpec]:
    wanted = {f.name for f in fields(kind)}
    client = max(1, len(split.train) // config.partition.clients)  # the same for every seed
    suits: dict[str, dict[str, Any]] = getattr(kind, "SUITS", {})
    specs: dict[str, LocalSpec | DistillSpec] = {}
    if "local" in wanted:
        own = {"optimizer": "adam", "batch": batch_for(client), "epochs": 10 if client < 500 else 5}
        specs["local"] = spec_from("local", LocalSpec, _join(own, suits.get("local", {}), config.local))
    for section, rows in (("sector", client), ("server", len(split.reference))):
        if section in wanted:
            own = {"optimizer": "adam", "batch": batch_for(rows), "epochs": 10}
            if len(split.validation):
                own |= {"patience": 5, "restore": "best_or_init"}
            specs[section] = spec_from(
                section, DistillSpec, _join(own, suits.get(section, {}), getattr(config, section))
            )
    return specs


def batch_for(rows: int) -> int:
    """A quarter of the rows as a power of two, from 8 to 64: a few steps an epoch even where data is scarce."""
    return int(min(64, max(8, 2 ** round(np.log2(max(1, rows / 4))))))


def _join(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win. `steps` and `epochs` replace each other, patience follows the unit, lr the optimiser."""
    result: dict[str, Any] = {}
    for layer in layers:
        if layer.get("steps") is not None or layer.get("epochs") is not None:
            result = {k: v for k, v in result.items() if k not in ("steps", "epochs")}
            if layer.get("steps") is not None and "patience" in result:
                result["patience"] = 1000
        result |= layer
    return {"lr": LEARNING_RATE[result["optimizer"]]} | result


def _check(chosen: Mapping[str, Any], split: Split, method: Any) -> None:
    """Refuse before anything runs what could only fail later."""
    server, sector = chosen.get("server"), chosen.get("sector")
    if server is not None and (server.epochs or server.steps) and not len(split.reference):
        raise ConfigError("distilling at the server needs a reference set; set data.reference_size above 0")
    if len(split.validation):
        return
    if getattr(method, "drop_worst", False):
        raise ConfigError(
            "algorithm.drop_worst needs a validation set; set data.validation above 0 or drop_worst = false"
        )
    at_leader = getattr(method, "val_source", "server") == "leader"
    for name, spec in (("server", server), ("sector", None if at_leader else sector)):
        if isinstance(spec, DistillSpec) and spec.judged:
            raise ConfigError(
                f"{name}.patience and {name}.restore need a validation set; set data.validation above 0, "
                f"or leave patience unset and {name}.restore = 'last'"
            )
