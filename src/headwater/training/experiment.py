"""Prepares a run from its configuration. Keys that were not set are filled in to suit the data and the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headwater.algorithms import ALGORITHMS
from headwater.algorithms.base import Method
from headwater.algorithms.step_counter import shares_counter, steps_before
from headwater.config import Config, method_from, spec_from
from headwater.config.catalog import stage_fields, stage_specs
from headwater.config.stage_defaults import distill_defaults, local_defaults
from headwater.core.federation import Federation
from headwater.core.params import Params
from headwater.core.tree import Tree
from headwater.data import kind_of_path
from headwater.data.base import Data
from headwater.data.loading import open_data, options_of
from headwater.data.preparation import Exchange, prepared
from headwater.data.reading import describe
from headwater.data.split import Split, carve
from headwater.errors import ConfigError
from headwater.models.base import ModelSpec
from headwater.partition.divide import (
    carving_seed,
    divide,
    local_rows,
    made_with,
    overridden,
    resolved_partition,
    training_sizes,
)
from headwater.partition.partition import Partition
from headwater.registry import path_exists
from headwater.specs import LEARNING_RATE, DistillSpec, LocalSpec
from headwater.tasks import devices
from headwater.tasks.batched.policy import Stacking, alone, stacking
from headwater.tasks.frozen_part import FrozenParts
from headwater.tasks.privacy import check, privacy_of
from headwater.tasks.task import RunContext
from headwater.training.architectures import specs_of
from headwater.training.warm_start import first_model

Rows = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Experiment:
    """Everything that a run needs.

    Args:
        config: the resolved configuration, in which every key has a value.
        split: the data, with validation, reference and test set carved out.
        partition: which client holds which samples.
        tree: server, sectors and clients.
        model: the clients' architecture, the first one if there are several.
        method: the method with its options.
        rows: client → numbers of the samples that it trains on.
        test_rows: client → numbers of the samples of its own test, in `split.local_tests`.
        class_names: names of the classes.
        others: further architectures of clients.
        exchange: what clients sent about their rows before the first round, to agree on a preparation of the data.
        start: the model that the run starts from; None: it is drawn.
        frozen: what models never change.
        tuned: how settings were chosen before the run, for its result; empty if they were not.
        remarks: what preparing it found worth a sentence before it begins.
    """

    config: Config
    split: Split
    partition: Partition
    tree: Tree
    model: ModelSpec
    method: Method
    rows: Rows
    test_rows: Rows
    class_names: tuple[str, ...]
    others: tuple[ModelSpec, ...] = ()
    exchange: Exchange | None = None
    start: Params | None = None
    frozen: FrozenParts = field(default_factory=FrozenParts)
    tuned: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def models(self) -> dict[str, ModelSpec]:
        """Every architecture of the run by name: the clients', and those that the method adds."""
        clients = dict(zip(self.tree.archs, (self.model, *self.others), strict=True))
        return clients | self.method.models(self.model)

    @property
    def prepared(self) -> dict[str, Any]:
        """How the data was read and prepared, as it is stored with the model; empty for plain arrays."""
        return describe(self.config.data, self.split, self.exchange)

    @cached_property
    def stacking(self) -> Stacking:
        """Whether clients are trained as one, and how many at a time."""
        engine = self.config.engine
        if self.config.privacy.row_clip:
            return alone("gradients of single rows are bounded")
        there, here = devices.meant(engine.device)[0], devices.present(engine.device)
        how = (engine.stack, engine.threads, there, engine.precision, engine.stack_memory, here)
        return stacking(self.method, self.models, *how)

    def after_round(self, fed: Federation, state: Any) -> Any:
        """The state after the round of this view, by the method with that round's learning rates."""
        stages = stage_specs(self.method)
        if shares_counter(stages):
            share, reference = self.config.partition.participation, len(self.split.reference)
            fed = replace(fed, steps_before=steps_before(self.method, stages, fed, share, reference))
        return self.method.in_round(fed.round, self.config.rounds).round(fed, state)

    def manifest(self) -> dict[str, Any]:
        """The split as partition.json holds it."""
        labels = self.split.train.y.numpy()
        return self.partition.described(labels, self.split.classes, self.class_names, made_with(self.config))

    def context(self) -> RunContext:
        start = {} if self.start is None else {self.tree.archs[0]: self.start}
        rest = (self.rows, self.test_rows, self.models, self.config.seed)
        return RunContext(self.split, *rest, start=start, frozen=self.frozen)


def prepare(config: Config, *, data: Data | None = None, model: Callable[[], nn.Module] | None = None) -> Experiment:
    """Load and carve the data, split it, build the tree, the model's spec and the method.

    Args:
        config: the configuration, which may leave keys open.
        data: used instead of `config.data.name`.
        model: builds the model, instead of `config.model.name`.

    Raises:
        UserError: the parts do not go together, or the data cannot be read.
    """
    config = with_absolute_paths(config)
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
        data_dir=Path(config.data.dir) if config.data.dir else None,
        seed=carving_seed(config),
        options=options_of(config.data),
    )
    partition = divide(config, split)
    remarks = overridden(config, partition, split)
    config = resolved_partition(config, partition, split)
    split = replace(split, local_test_source=config.partition.local_test_source)
    rows, test_rows, share = local_rows(config, partition, split)
    exchange = None
    if loaded.preparation is not None:
        clients = [f"c{number}" for number, size in enumerate(partition.lengths.tolist()) if size]
        split, exchange = prepared(split, rows, clients, loaded.preparation)
    kind = ALGORITHMS.load(config.method)
    spec, others = specs_of(config, kind, split, model)
    names = (spec.name, *(other.name for other in others))
    tree = Tree.of(training_sizes(partition.lengths, share), partition.sectors, names)
    built = method_from(kind, config.algorithm, _stages(config, kind, split, partition))
    chosen = stage_specs(built)
    _check(chosen, split, built)
    settled: dict[str, Any] = {name: asdict(stage) for name, stage in chosen.items()}
    if model is None:
        settled["model"] = {"name": spec.name, "projection": spec.projection, **spec.options}
    start, frozen, hashes = first_model(config, dict(zip(names, (spec, *others), strict=True)))
    settled["model"] = settled.get("model", {}) | hashes
    parts = (tree, spec, built, rows, test_rows, loaded.class_names, others, exchange, start, frozen)
    experiment = Experiment(config.merged(settled), split, partition, *parts, remarks=remarks)
    for extra in experiment.models.values():
        extra.outline()  # a method may refuse the model, or add one that cannot be built
    check(privacy_of(config.privacy), config.robust.model_dump(), (spec, *others))
    return experiment


def _stages(config: Config, kind: Any, split: Split, partition: Partition) -> dict[str, LocalSpec | DistillSpec]:
    """The specs of the method's stages.

    The configuration overrides the method's defaults, which override the defaults derived from the data.
    """
    wanted = stage_fields(kind)
    samples = len(split.train) if partition.rule is None else int(partition.lengths.sum())
    client = max(1, samples // config.partition.clients)  # mean rows per client, which do not depend on the seed
    defaults = kind.defaults(config.algorithm)
    specs: dict[str, LocalSpec | DistillSpec] = {}
    if "local" in wanted:
        own = local_defaults(client)
        specs["local"] = spec_from("local", LocalSpec, _join(own, defaults.get("local", {}), config.local))
    for section, rows in (("sector", client), ("server", len(split.reference))):
        if section in wanted:
            own = distill_defaults(rows, validated=len(split.validation) > 0)
            specs[section] = spec_from(
                section, DistillSpec, _join(own, defaults.get(section, {}), getattr(config, section))
            )
    return specs


def _join(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings of a stage; later layers take precedence.

    `steps` and `epochs` replace each other, and patience changes its unit with them. `lr` and `momentum` belong to
    their optimiser.
    """
    result: dict[str, Any] = {}
    for layer in layers:
        if layer.get("optimizer", result.get("optimizer")) != result.get("optimizer"):
            result = {k: v for k, v in result.items() if k not in ("lr", "momentum")}
        if layer.get("steps") is not None or layer.get("epochs") is not None:
            result = {k: v for k, v in result.items() if k not in ("steps", "epochs")}
            if layer.get("steps") is not None and result.get("patience") is not None:
                result["patience"] = 1000
        result |= layer
    return {"lr": LEARNING_RATE[result["optimizer"]]} | result


def _check(chosen: Mapping[str, Any], split: Split, method: Method) -> None:
    """Refuse settings that would fail later."""
    for name, stage in chosen.items():
        if stage.augment != "none" and len(split.shape) != 3:
            inputs = f"these inputs have the shape {tuple(split.shape)}; leave it at 'none'"
            raise ConfigError(
                f"{name}.augment = {stage.augment!r} changes images (channels, height, width), and {inputs}"
            )
    server, sector = chosen.get("server"), chosen.get("sector")
    if server is not None and method.distils("server") and (server.epochs or server.steps) and not len(split.reference):
        raise ConfigError("distilling at the server needs a reference set; set data.reference_size above 0")
    if server is not None and server.labelled and split.reference_labels is None:
        raise ConfigError(
            "server.labelled needs a reference set with labels of the clients' classes; use data.reference = "
            "'holdout', one with data.reference_labelled = true, or server.labelled = 0"
        )
    if len(split.validation):
        return
    for option in method.validation_options():
        raise ConfigError(f"algorithm.{option} needs a validation set; set data.validation above 0, or switch it off")
    for name, spec in (("server", server), ("sector", sector)):
        if not method.validates_on_server_data(name):
            continue
        if isinstance(spec, DistillSpec) and spec.weights == "learned":
            raise ConfigError(
                f"{name}.weights = 'learned' fits weights on a validation set; set data.validation above 0, "
                "or choose other weights"
            )
        if isinstance(spec, DistillSpec) and spec.when != "always":
            raise ConfigError(
                f"{name}.when = {spec.when!r} compares teachers and start on a validation set; set data.validation "
                f"above 0, or {name}.when = 'always'"
            )
        if isinstance(spec, DistillSpec) and spec.judged:
            raise ConfigError(
                f"{name}.patience and {name}.restore need a validation set; set data.validation above 0, "
                f"or leave patience unset and {name}.restore = 'last'"
            )


def with_absolute_paths(config: Config) -> Config:
    """The configuration with absolute paths of files and folders.

    Args:
        config: as the user wrote it.
    """
    data, model = config.data.model_dump(), config.model.model_dump()
    paths = {key: value for key in ("name", "reference") if kind_of_path(value := str(data[key])) is not None}
    if (test := data.get("test")) and Path(test).expanduser().is_file():
        paths["test"] = test
    if (tokenizer := data.get("tokenizer")) and Path(tokenizer).expanduser().exists():
        paths["tokenizer"] = tokenizer
    changed: dict[str, Any] = {
        "data": _other(data, {k: str(Path(v).expanduser().absolute()) for k, v in paths.items()})
    }
    linked = {}
    if model["start"] and path_exists(start := Path(model["start"]).expanduser()):
        linked["start"] = str(start.resolve())  # a link such as runs/latest will point elsewhere
    if isinstance(path := model.get("path"), str) and Path(path).expanduser().is_dir():
        linked["path"] = str(Path(path).expanduser().absolute())
    changed["model"] = _other(model, linked)
    return config.merged(changed) if any(changed.values()) else config


def _other(section: dict[str, Any], values: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if section[key] != value}
