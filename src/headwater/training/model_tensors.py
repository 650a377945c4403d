"""The models that a run leaves as tensors of model.safetensors, with their frozen parts and their metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from headwater.core.params import Params, digest
from headwater.models.base import ModelSpec
from headwater.tasks.task import RunContext

if TYPE_CHECKING:
    from headwater.training.experiment import Experiment

Item = TypeVar("Item")
Frozen = Mapping[str, Mapping[str, Tensor]]  # architecture → what is frozen in it, by state name


def tensors_of(params: Mapping[str, Params], frozen: Frozen | None = None) -> dict[str, Tensor]:
    """The tensors of model.safetensors: state names, behind the member's name if there are several models.

    Args:
        params: the models by name.
        frozen: architecture → what is frozen in it, by name.
    """
    whole = {name: p.named((frozen or {}).get(p.layout.arch)) for name, p in params.items()}
    return {f"{name}.{key}" if name else key: tensor for name, state in whole.items() for key, tensor in state.items()}


def frozen_of(context: RunContext, params: Mapping[str, Params]) -> dict[str, Mapping[str, Tensor]]:
    """What is frozen in the architectures of some models, by architecture; without those in which nothing is."""
    archs = {p.layout.arch for p in params.values() if p.layout.frozen}
    return {arch: context.frozen.of(context.models[arch], arch, context.seed).tensors for arch in sorted(archs)}


def describe_frozen(frozen: Frozen) -> dict[str, Any]:
    """Parameters, bytes and hash of what is frozen, for result.json, by architecture."""
    return {
        arch: {
            "parameters": sum(tensor.numel() for tensor in tensors.values()),
            "bytes": sum(tensor.nbytes for tensor in tensors.values()),
            "sha256": digest(tensors),
        }
        for arch, tensors in frozen.items()
    }


def named(members: Mapping[Any, Item]) -> dict[str, Item]:
    """Members under distinct names that are valid in an `nn.ModuleDict`."""
    distinct: dict[str, Item] = {}
    taken = dir(nn.ModuleDict())
    for key, member in members.items():
        name = re.sub(r"\W", "_", str(key)) or "member"
        while name in distinct or name in taken:
            name += "_"
        distinct[name] = member
    return distinct


def describe_model(experiment: Experiment, params: Mapping[str, Params]) -> str:
    """Metadata of model.safetensors as JSON: what is needed to build the model, or each member, and to use it."""

    def described(spec: ModelSpec) -> dict[str, Any]:
        return {f.name: getattr(spec, f.name) for f in fields(spec) if f.name != "builder"}

    about = described(experiment.model) | {"class_names": list(experiment.class_names)}
    if experiment.prepared:
        about["preparation"] = experiment.prepared
    if experiment.split.words is not None:
        about["words"] = experiment.split.words
    if "" not in params:
        models = experiment.models
        about["members"] = {name: described(models[p.layout.arch]) for name, p in params.items()}
    return json.dumps(about)
