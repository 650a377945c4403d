"""What a run leaves beside its global model: the members of an ensemble, and further models at the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from headwater.algorithms.base import outputs
from headwater.core.federation import Federation, Located
from headwater.core.params import Params, digest
from headwater.tasks.task import RunContext
from headwater.training.experiment import Experiment
from headwater.training.model_tensors import describe_model, frozen_of, named, tensors_of


@dataclass(frozen=True)
class Beside:
    """Models beside the global one.

    Args:
        tensors: those of members.safetensors, behind the name of their model; equal models are stored once.
        about: the metadata of the file.
    """

    tensors: dict[str, Tensor]
    about: str


def left_beside(context: RunContext, experiment: Experiment, fed: Federation, state: Any) -> Beside | None:
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
    return Beside(tensors_of(kept, frozen_of(context, kept)), json.dumps(about))
