"""From a configuration to all that a run needs; what was left open is filled in to suit the data and the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headwater.algorithms import ALGORITHMS
from headwater.algorithms.base import Algorithm
from headwater.config import Config, method_from, spec_from
from headwater.config.catalog import stage_fields, stage_specs
from headwater.config.fields import settings_of
from headwater.core.rng import stream
from headwater.core.sectors import assign
from headwater.core.tree import Tree
from headwater.data import kind_of_path
from headwater.data.base import Data, Split, carve
from headwater.data.loading import asked_of, open_data
from headwater.data.preparation import Exchange, Preparation, prepared
from headwater.errors import ConfigError, nearest
from headwater.models import MODELS, auto
from headwater.models.base import ModelSpec
from headwater.models.fit import fitted
from headwater.models.parts import need_parts
from headwater.partition import PARTITIONS
from headwater.partition.base import Lazy, Partition
from headwater.partition.given import Natural, carving_seed, made_with, settled
from headwater.partition.rows import OwnRows, training_sizes
from headwater.specs import DistillSpec, LocalSpec
from headwater.tasks.batched.policy import Stacking, stacking
from headwater.tasks.task import RunContext

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
    others: tuple[ModelSpec, ...] = ()  # further architectures of clients
    exchange: Exchange | None = None  # what clients told about their rows before the first round

    @property
    def models(self) -> dict[str, ModelSpec]:
        """Every architecture of the run by name: the clients', and those that the method brings."""
        own: dict[str, ModelSpec] = getattr(self.method, "models", lambda spec: {})(self.model)
        return dict(zip(self.tree.archs, (self.model, *self.others), strict=True)) | own

    @cached_property
    def stacking(self) -> Stacking:
        """Whether clients are trained together."""
        engine = self.config.engine
        return stacking(self.method, self.models, engine.stack, engine.threads)

    def manifest(self) -> dict[str, Any]:
        """The split as partition.json holds it."""
        labels = self.split.train.y.numpy()
        return self.partition.told(labels, self.split.classes, self.class_names, made_with(self.config))

    def context(self) -> RunContext:
        return RunContext(self.split, self.rows, self.test_rows, self.models, self.config.seed)


def prepare(config: Config, *, data: Data | None = None, model: Callable[[], nn.Module] | None = None) -> Experiment:
    """Load and carve the data, split it, build the tree, the model's spec and the method."""
    config = _from_anywhere(config)
    folder = Path(config.data.dir) if config.data.dir else None
    seed = carving_seed(config)
    loaded = data if data is not None else open_data(config.data)
    split = carve(
        loaded,
        fraction=config.data.fraction,
        test_fraction=config.data.test_fraction,
        validation=config.data.validation,
        reference=config.data.reference,
        reference_size=config.data.reference_size,
        reference_noise=config.data.reference_noise,
        reference_classes=config.data.reference_classes,
        reference_fraction=config.data.reference_fraction,
        reference_labelled=config.data.reference_labelled,
        data_dir=folder,
        seed=seed,
        options=asked_of(config.data),
    )
    partition = divide(config, split)
    config = _as_split(config, partition, split)
    share = config.partition.local_test
    rows, test_rows = (OwnRows(partition.indices, share, config.seed, test=test) for test in (False, True))
    exchange = None
    if loaded.preparation is not None:
        split, exchange = _exchange(loaded.preparation, split, partition, rows)
    kind = ALGORITHMS.load(config.method)
    spec, others = specs_of(config, kind, split, model)
    names = (spec.name, *(other.name for other in others))
    tree = Tree.of(training_sizes(partition.lengths, share), partition.sectors, names)
    built = method_from(kind, config.algorithm, _stages(config, kind, split, partition))
    resolved = config.merged({"model": _described(spec)} if model is None else {})
    chosen = stage_specs(built)
    resolved = resolved.merged({name: asdict(spec) for name, spec in chosen.items()})
    _check(chosen, split, built)
    parts = (resolved, split, partition, tree, spec, built, rows, test_rows, loaded.class_names, others, exchange)
    made = Experiment(*parts)
    for extra in made.models.values():  # a method may refuse the model, or bring one that cannot be built
        extra.outline()
    return made


def _from_anywhere(config: Config) -> Config:
    """With the whole path of files, so that a run can be carried on and repeated from wherever one is."""
    data = config.data.model_dump()
    paths = {key: value for key in ("name", "reference") if kind_of_path(value := str(data[key])) is not None}
    if (test := data.get("test")) and Path(test).expanduser().is_file():
        paths["test"] = test
    whole = {key: str(Path(value).expanduser().absolute()) for key, value in paths.items()}
    return config.merged({"data": whole}) if any(data[key] != value for key, value in whole.items()) else config


def specs_of(
    config: Config, kind: Any, split: Split, maker: Callable[[], nn.Module] | None
) -> tuple[ModelSpec, tuple[ModelSpec, ...]]:
    """The run's model, with what suits the method where nothing else was said, and further ones for some clients."""
    asked, suits = config.model, _suits(config, kind).get("model", {})
    name = suits.get("name", "auto") if asked.name == "auto" else asked.name
    name = auto(split.shape, split.classes, split.words is not None) if name == "auto" else name

    def spec(name: str, options: Mapping[str, Any]) -> ModelSpec:
        listed = name in MODELS and maker is None
        known = settings_of(MODELS.load(name)) if listed else {}
        suited = {key: value for key, value in suits.items() if key in known}
        projection = suits.get("projection", 0) if asked.projection is None and listed else asked.projection or 0
        filled = {key: setting.default for key, setting in known.items()} | suited
        if split.words is not None and "words" in known:
            filled["words"] = split.words  # an embedding has a row for each token there is
        filled |= dict(options)
        more = (maker, asked.buffers, projection, asked.bn_head, split.words is not None)
        return fitted(ModelSpec(name, split.shape, split.classes, filled, *more), split.words)

    main = spec(name, asked.options)
    if asked.also and not getattr(kind, "UNLIKE", False):
        raise ConfigError(
            f"model.also gives clients unequal architectures, which method {config.method!r} cannot combine; "
            "remove it, or use a method that can, such as 'feddf'"
        )
    for other in asked.also:
        if other not in MODELS or other in (main.name, *asked.also[: asked.also.index(other)]):
            raise ConfigError(
                f"model.also takes listed models other than model.name, each once, got {other!r}"
                f"{nearest(other, MODELS)} (known: {', '.join(MODELS)})"
            )
    made = (main, *(spec(other, {}) for other in asked.also))
    for each in made:
        each.outline()  # a model that cannot be built is refused before anything runs
        if "features" in getattr(kind, "NEEDS", ()):
            need_parts(each, f"method {config.method!r}")
    return main, made[1:]


def _suits(config: Config, kind: Any) -> dict[str, dict[str, Any]]:
    """A method's own defaults by section; they may depend on what its options choose."""
    found: dict[str, dict[str, Any]] = (
        kind.suits(config.algorithm) if hasattr(kind, "suits") else getattr(kind, "SUITS", {})
    )
    return found


def _described(spec: ModelSpec) -> dict[str, Any]:
    return {"name": spec.name, "projection": spec.projection, **spec.options}


def divide(config: Config, split: Split) -> Partition:
    """Which client holds which samples, and which sector it belongs to: a function of data, seed and configuration."""
    labels = split.train.y.numpy()
    part = config.partition
    scheme = PARTITIONS.load(part.scheme)(**part.options)
    if split.owners is not None and not hasattr(scheme, "given"):
        scheme = Natural()
    if hasattr(scheme, "given"):  # nothing is drawn but, perhaps, the sectors
        found = scheme.given(labels, split.owners)
        if (places := found.sectors) is None:
            counts = np.stack([np.bincount(labels[i], minlength=split.classes) for i in found.indices])
            few = min(part.sectors, len(found.indices))
            places = assign(part.assign, counts, few, stream(config.seed, "sectors"))
        return Partition(found.indices, places, found.client_names, found.sector_names)
    if hasattr(scheme, "split_tree"):  # who is in which sector decides who holds what, so it cannot follow from it
        alike = np.ones((part.clients, 1), dtype=np.int64)
        sectors = assign(part.assign, alike, part.sectors, stream(config.seed, "sectors"))
        indices = scheme.split_tree(labels, sectors, stream(config.seed, "partition"))
        return Partition(tuple(indices), sectors)
    indices = scheme.split(labels, part.clients, stream(config.seed, "partition"))
    if isinstance(indices, Lazy) and part.assign != "balanced":  # sizes are enough, and are there
        counts = indices.lengths[:, None]
    else:
        counts = np.stack([np.bincount(labels[i], minlength=split.classes) for i in indices])
    sectors = assign(part.assign, counts, part.sectors, stream(config.seed, "sectors"))
    return Partition(indices, sectors)


def _as_split(config: Config, partition: Partition, split: Split) -> Config:
    """Data that came split, or a split that was given, says itself how many clients and sectors there are."""
    part = config.partition
    found: dict[str, Any] = {"clients": partition.clients, "sectors": max(partition.sectors) + 1}
    natural = split.owners is not None and not hasattr(PARTITIONS.load(part.scheme), "given")
    found |= {"scheme": "natural" if natural else part.scheme} | settled(config, partition)
    if all(getattr(part, key) == value for key, value in found.items()):
        return config
    if not isinstance(part.assign, str) and len(part.assign) != partition.clients:
        found["assign"] = "random"  # the data says where clients are
    return config.merged({"partition": found})


def _exchange(way: Preparation, split: Split, partition: Partition, rows: Rows) -> tuple[Split, Exchange]:
    clients = [f"c{number}" for number, size in enumerate(partition.lengths.tolist()) if size]
    return prepared(split, rows, clients, way)


def _stages(config: Config, kind: Any, split: Split, partition: Partition) -> dict[str, LocalSpec | DistillSpec]:
    wanted = stage_fields(kind)
    samples = len(split.train) if partition.rule is None else int(partition.lengths.sum())
    client = max(1, samples // config.partition.clients)  # the same for every seed
    suits = _suits(config, kind)
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
    """Later layers win. `steps` and `epochs` replace each other, patience follows the unit, lr and momentum the
    optimiser."""
    result: dict[str, Any] = {}
    for layer in layers:
        if layer.get("optimizer", result.get("optimizer")) != result.get("optimizer"):
            result = {k: v for k, v in result.items() if k not in ("lr", "momentum")}
        if layer.get("steps") is not None or layer.get("epochs") is not None:
            result = {k: v for k, v in result.items() if k not in ("steps", "epochs")}
            if layer.get("steps") is not None and "patience" in result:
                result["patience"] = 1000
        result |= layer
    return {"lr": LEARNING_RATE[result["optimizer"]]} | result


def _check(chosen: Mapping[str, Any], split: Split, method: Any) -> None:
    """Refuse before anything runs what could only fail later."""
    server, sector = chosen.get("server"), chosen.get("sector")
    taught = getattr(method, "consolidate", "") not in ("none", "leaders")  # a method may leave its last stage out
    if server is not None and taught and (server.epochs or server.steps) and not len(split.reference):
        raise ConfigError("distilling at the server needs a reference set; set data.reference_size above 0")
    if server is not None and server.labelled and split.reference_labels is None:
        raise ConfigError(
            "server.labelled needs a reference set with labels of the clients' classes; use data.reference = "
            "'holdout', one with data.reference_labelled = true, or server.labelled = 0"
        )
    if len(split.validation):
        return
    for rule in ("drop_worst", "outlier_rule"):
        if getattr(method, rule, False):
            raise ConfigError(f"algorithm.{rule} needs a validation set; set data.validation above 0 or {rule} = false")
    at_leader = getattr(method, "val_source", "server") == "leader"
    for name, spec in (("server", server), ("sector", None if at_leader else sector)):
        if isinstance(spec, DistillSpec) and spec.weights == "learned":
            raise ConfigError(
                f"{name}.weights = 'learned' fits weights on a validation set; set data.validation above 0, "
                "or choose other weights"
            )
        if isinstance(spec, DistillSpec) and spec.judged:
            raise ConfigError(
                f"{name}.patience and {name}.restore need a validation set; set data.validation above 0, "
                f"or leave patience unset and {name}.restore = 'last'"
            )
