"""The models that a run leaves, as tensors with metadata: model.safetensors, and members.safetensors beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from headwater.algorithms.base import outputs
from headwater.core.federation import Federation, Located
from headwater.core.params import Params, digest
from headwater.models.base import ModelSpec
from headwater.tasks.task import RunContext
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


@dataclass(frozen=True)
class ModelsBeside:
    """Models beside the global one.

    Args:
        tensors: those of members.safetensors, behind the name of their model; equal models are stored once.
        about: the metadata of the file.
    """

    tensors: dict[str, Tensor]
    about: str


def left_beside(context: RunContext, experiment: Experiment, fed: Federation, state: Any) -> ModelsBeside | None:
    """The models that a run with a global model leaves beside it; None if there are none.

    Args:
        context: of the run's tasks.
        experiment: the run.
        fed: the federation of the last round.
        state: the method's state after it.
    """
    shown = outputs(state)
    if shown.model is None:
        return None
    team = shown.team if shown.team is not None and shown.team.left else None
    voters = cast(Mapping[str, Located], team.members) if team else {}
    located = named({**voters, **shown.others})
    read: dict[str, Params | None] = {name: fed.read(x) for name, x in located.items()}
    models = {name: model for name, model in read.items() if model is not None}  # all clients of one may be lost
    if not models:
        return None
    first: dict[str, str] = {}  # the first name of each content
    same = {name: first.setdefault(digest(model.named()), name) for name, model in models.items()}
    about = json.loads(describe_model(experiment, models))
    described = about.pop("members")
    names = [name for name in list(located)[: len(voters)] if name in models]
    about["members"] = {name: described[name] for name in names}
    about["further"] = {name: described[name] for name in models if name not in names}
    about["same"] = {name: other for name, other in same.items() if other != name}
    if team:
        samples = {name: float(models[name].weight) for name in names}
        about["voting"] = {"mix": team.mix, "weights": team.weights, "samples": samples}
    kept = {name: models[name] for name in first.values()}
    return ModelsBeside(tensors_of(kept, frozen_of(context, kept)), json.dumps(about))
