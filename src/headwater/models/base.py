"""ModelSpec: everything needed to build a model again, anywhere, without shipping the model itself."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwater.errors import ConfigError, nearest
from headwater.models import MODELS, auto

Norm = Literal["batch", "group", "none"]


class Net(nn.Module):
    """A model in the two parts that several methods need apart: x → features (n, d) → logits (n, classes)."""

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features, self.classifier = features, classifier

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


@dataclass(frozen=True)
class ModelSpec:
    """A model's name, what it takes and gives, and its options. `name="auto"` becomes the listed name that suits.

    `builder`, a callable without arguments that returns an `nn.Module`, takes the place of the listed models.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    builder: Callable[[], nn.Module] | None = None
    buffers: Literal["average", "first"] = "average"  # what averaging does to batch-norm statistics
    projection: int = 0  # width of a projection between extractor and classifier
    bn_head: bool = False  # batch norm without parameters after the extractor

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "options", dict(self.options))
        if self.classes < 2:
            raise ConfigError(f"a classifier needs at least 2 classes, got {self.classes}")
        if self.builder is not None:
            if self.options:
                raise ConfigError("a model given as a callable takes no options; set them inside the callable")
            return
        if self.name == "auto":
            object.__setattr__(self, "name", auto(self.shape, self.classes))
        if MODELS.check(self.name) in MODELS:
            _check_names(self.name, self.options, MODELS.load(self.name))

    def build(self) -> nn.Module:
        """A new module. Its weights come from torch's global generator, which the caller seeds."""
        if self.builder is not None:
            made = self.builder()
        elif self.name in MODELS:
            made = MODELS.load(self.name)(self.shape, self.classes, **self.options)
        else:
            made = _call(self.name, MODELS.load(self.name), self.options)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"model {self.name!r} gave a {type(made).__name__}; it must return a torch.nn.Module")
        return self._headed(made) if self.projection or self.bn_head else made

    def _headed(self, net: nn.Module) -> Net:
        """The net with more between its extractor and its classifier."""
        if not in_two_parts(net) or not isinstance(net.classifier, nn.Linear):
            raise ConfigError(
                f"model.projection and model.bn_head need a model with parts `features` and a linear `classifier`, "
                f"which {self.name!r} has not; leave them unset"
            )
        width, layers = net.classifier.in_features, [net.features]
        if self.projection:
            layers += [nn.Linear(width, self.projection), nn.ReLU(), nn.Linear(self.projection, self.projection)]
            width = self.projection
        if self.bn_head:
            layers.append(nn.BatchNorm1d(width, affine=False))
        return Net(nn.Sequential(*layers), nn.Linear(width, net.classifier.out_features))  # type: ignore[arg-type]

    def outline(self) -> nn.Module:
        """The module without its weights: names, shapes and every check of the options, but no memory and no draws.

        A model of one's own may do anything when built, so that is built in earnest and torch's generator put back.
        """
        if self.builder is None and self.name in MODELS:
            with torch.device("meta"):
                return self.build()
        with torch.random.fork_rng(devices=[]):
            return self.build()

    def count(self) -> int:
        """The number of trainable parameters."""
        return sum(p.numel() for p in self.outline().parameters() if p.requires_grad)


def in_two_parts(module: nn.Module) -> bool:
    """Whether a model can be used as extractor (`features`) and `classifier`."""
    return all(isinstance(getattr(module, part, None), nn.Module) for part in ("features", "classifier"))


def normalise(kind: str, channels: int, groups: int) -> nn.Module:
    """The normalisation layer with this name for feature maps of that many channels."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        if groups < 1 or channels % groups:
            raise ConfigError(f"groups must divide the {channels} channels it normalises, got {groups}; 2 always does")
        return nn.GroupNorm(groups, channels)
    return nn.Identity()


def choose(model: str, option: str, value: object, accepted: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the accepted words."""
    if value not in accepted:
        raise ConfigError(
            f"{model} does not know {option} {value!r}{nearest(str(value), accepted)} (accepted: {', '.join(accepted)})"
        )


def widths_of(model: str, option: str, value: object) -> tuple[int, ...]:
    """A list of layer widths, or a sentence."""
    items = (value,) if isinstance(value, int) else value
    if not isinstance(items, (tuple, list)) or not all(type(w) is int and w > 0 for w in items):
        raise ConfigError(
            f"{model} takes {option} as a list of positive whole numbers, such as [200, 200], got {value!r}"
        )
    return tuple(items)


def image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """(channels, height, width), or a sentence if the input is no image of at least that size."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"{model} takes images (channels, height, width) of at least {smallest} x {smallest} px, "
            f"got inputs of shape {shape}; use 'mlp' for these"
        )
    return shape[0], shape[1], shape[2]


def flat_size(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _check_names(name: str, options: Mapping[str, Any], builder: Callable[..., Any]) -> None:
    known = [p.name for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for key in options:
        if key not in known:
            accepted = f"accepted: {', '.join(known)}" if known else "it has no options"
            raise ConfigError(f"model {name!r} has no option {key!r}{nearest(key, known)} ({accepted})")


def _call(name: str, function: Any, options: Mapping[str, Any]) -> Any:
    if not callable(function):
        raise ConfigError(f"{name!r} is not callable; it must be a function or class that gives a torch.nn.Module")
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ConfigError(f"{name!r} cannot be called with the options {dict(options)} ({error})") from error
    return function(**options)
