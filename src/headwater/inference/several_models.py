"""Several trained models: how they are built, and how they predict together."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwater.config import CUSTOM
from headwater.errors import ConfigError, HeadwaterError, OutputError, said
from headwater.models.base import ModelSpec
from headwater.specs import Mix, Weights

FILE = "members.safetensors"  # models that a run keeps beside the one in model.safetensors


class Ensemble(nn.Module):
    """Several classifiers as one: a softmax of its outputs gives the probabilities of all members together.

    Args:
        members: the classifiers.
        mix: "logits" averages logits, all others average probabilities.
        weights: "samples" weighs members by `samples`, "confidence" by the entropy of each prediction; all others weigh
            members equally.
        samples: how many samples each member was trained on.
    """

    def __init__(
        self,
        members: Mapping[str, nn.Module],
        mix: Mix = "probs",
        weights: Weights = "uniform",
        samples: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members.values())
        self._mix, self._weights = mix, weights
        counts = [float((samples or {}).get(name, 0.0)) if weights == "samples" else 1.0 for name in members]
        self._shares = [count / (sum(counts) or 1.0) for count in counts]

    def forward(self, x: Tensor) -> Tensor:
        logits = torch.stack([member(x) for member in self.members])
        probs = torch.softmax(logits, 2)
        shares = torch.tensor(self._shares, dtype=logits.dtype).view(-1, 1, 1)
        if self._weights == "confidence":
            confidence = 1 + torch.xlogy(probs, probs).sum(2, keepdim=True) / math.log(max(2, probs.shape[2])) + 1e-6
            shares = confidence / confidence.sum(0)
        if self._mix == "logits":
            return (shares * logits).sum(0)
        mean = (shares * probs).sum(0)
        return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()


def spec_of(fields: Mapping[str, Any], build: Callable[[], nn.Module] | None, source: str) -> ModelSpec:
    """The architecture that the metadata of a file describes.

    Args:
        fields: as the metadata has them.
        build: builds the module of a model that was given as a function.
        source: where it is from, for messages.
    """
    _check_types(fields)
    if fields["name"] != CUSTOM:
        return ModelSpec(**fields)
    if build is None:
        raise ConfigError(
            f"the model of {source} was given as a function, which is not stored; give it again: "
            "hw.load(…, model=lambda: MyNet())"
        )
    return ModelSpec(**fields, builder=build)


def _check_types(fields: Mapping[str, Any]) -> None:
    """Raise TypeError unless the fields of a `ModelSpec` are of the types that a run writes."""
    usual: dict[str, Any] = {each.name: type(each.default) for each in dataclasses.fields(ModelSpec)}
    usual |= {"name": str, "classes": int, "shape": list, "options": dict, "head": str | None, "alpha": float | int}
    for key, value in fields.items():
        kind = usual.get(key, object)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"{key} is {reprlib.repr(value)}")
    if not all(type(size) is int and size > 0 for size in fields["shape"]):
        raise TypeError(f"shape is {reprlib.repr(fields['shape'])}")


def built(spec: ModelSpec, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """The module with this state, in evaluation mode.

    Raises:
        OutputError: the state is that of another architecture, or there is none with these options.
    """
    try:
        if not spec.own:  # before a module takes memory that its file does not account for
            _check_shapes(spec.outline().state_dict(), state)
        with torch.random.fork_rng(devices=[]):  # the weights that it draws are replaced
            module = spec.build()
        missing, unknown = module.load_state_dict(dict(state), strict=False)
    except HeadwaterError:
        raise
    except Exception as error:
        if spec.own and not isinstance(error, RuntimeError):  # in the user's own code
            raise
        raise OutputError(f"the tensors of {source} do not fit {spec.name!r} ({said(error)})") from error
    named = [*module.named_parameters(remove_duplicate=False)]
    loaded = {id(parameter) for name, parameter in named if name in state}  # a tied parameter is stored once
    odd = [name for name, parameter in named if name in missing and id(parameter) not in loaded] + unknown
    if odd:
        raise OutputError(f"the tensors of {source} do not fit {spec.name!r}: {odd[0]!r} has no counterpart")
    return module.eval()


def _check_shapes(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    for name, tensor in state.items():
        if name in wanted and wanted[name].shape != tensor.shape:
            raise ValueError(f"{name} has the shape {list(tensor.shape)} instead of {list(wanted[name].shape)}")
