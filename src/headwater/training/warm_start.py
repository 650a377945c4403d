"""Warm start: the model of another run as the first model of a run (`model.start`, `headwater run --from`)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor

from headwater.config import Config
from headwater.core.params import Params, digest
from headwater.errors import ConfigError, OutputError
from headwater.inference.trained import load
from headwater.models.base import ModelSpec
from headwater.tasks.cost import shaped_model
from headwater.tasks.frozen_part import FrozenParts, checked_frozen

FRESH = "choose another start, or remove it to begin with new weights"


def first_model(config: Config, specs: Mapping[str, ModelSpec]) -> tuple[Params | None, FrozenParts, dict[str, str]]:
    """The model that a run starts from, None if it is drawn; what is frozen; and the hashes for `[model]`.

    Args:
        config: the configuration, whose hashes are compared.
        specs: the clients' architectures by name.

    Raises:
        UserError: the model cannot be used, or is not the one that a hash stands for.
    """
    wanted, first = config.model, next(iter(specs.values()))
    if wanted.start:
        start, frozen, sha256 = start_model(wanted.start, wanted.start_sha256, first)
        return start, FrozenParts({first.name: frozen}), {"start_sha256": sha256}
    known = checked_frozen(wanted.frozen_sha256, specs)
    return None, FrozenParts(), {"frozen_sha256": known} if known else {}


def start_model(source: str, sha256: str, spec: ModelSpec) -> tuple[Params, dict[str, Tensor], str]:
    """The model to start from, what is frozen in it, and its hash.

    Args:
        source: a run's directory, or its model.safetensors.
        sha256: hash that the model must have; empty for any.
        spec: the architecture of the new run.

    Raises:
        ConfigError: it is another architecture, several models, or not the model that the hash stands for.
        OutputError: there is no model, or the file is damaged.
    """
    try:
        trained = load(source, model=spec.builder)
    except OutputError as error:
        raise OutputError(f"model.start: {error}") from None
    if trained.specs:
        raise ConfigError(
            f"model.start: {source} holds {len(trained.specs)} models and no global one, so a run cannot start from "
            f"it; {FRESH}"
        )
    if trained.spec.name != spec.name:
        raise ConfigError(
            f"model.start: {source} holds a {trained.spec.name!r}, and this run trains a {spec.name!r}; set model.name "
            f'= "{trained.spec.name}", or {FRESH}'
        )
    outline = shaped_model(spec, spec.name)
    layout = outline.layout
    wanted = dict(chain(layout.trainable, layout.floats, layout.counters, layout.frozen))
    found = {name: tuple(tensor.shape) for name, tensor in trained.tensors.items()}
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            here, there = (f"shape {shapes[name]}" if name in shapes else "no place" for shapes in (wanted, found))
            raise ConfigError(
                f"model.start: {name!r} has {there} in {source} and {here} in this run: another input shape "
                f"({trained.spec.shape} there, {spec.shape} here), number of classes ({trained.spec.classes} there, "
                f"{spec.classes} here) or option of [model]; {FRESH}"
            )
    known = digest(trained.tensors)
    if sha256 and sha256 != known:
        raise ConfigError(
            f"model.start: {source} holds another model than when this run began (model.start_sha256 is "
            f"{sha256[:12]}…, now it is {known[:12]}…); bring that model back, or begin another run"
        )
    numbers = [trained.tensors[name].reshape(-1) for name, _ in (*layout.trainable, *layout.floats)]
    counters = [trained.tensors[name].reshape(-1) for name, _ in layout.counters]
    vector = torch.cat([torch.zeros(0, dtype=outline.vector.dtype), *numbers])
    model = Params(vector, torch.cat([torch.zeros(0, dtype=torch.int64), *counters]), layout, weight=0.0)
    return model, {name: trained.tensors[name] for name, _ in layout.frozen}, known
