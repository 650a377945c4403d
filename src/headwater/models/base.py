"""`ModelSpec`: a picklable description from which a model can be built anywhere, and helpers for networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from headwater.errors import ConfigError, nearest, said
from headwater.models import MODELS, auto
from headwater.models.building import BatchNormOf, SkipDraws, as_in_keras, call, check_names, named

Norm = Literal["batch", "group", "none"]
Shape = tuple[int, ...]  # of one input


class Net(nn.Module):
    """A model in the two parts that several methods use separately: x → features (n, d) → logits (n, classes).

    Args:
        features: the extractor.
        classifier: maps features to one logit per class.
    """

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features, self.classifier = features, classifier

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


@dataclass(frozen=True)
class ModelSpec:
    """Description of a model: name, input shape, classes and options.

    Args:
        name: of a listed network, "auto" for the one that suits the shape, or "package.module:Name" of the user's own.
        shape: of one input.
        classes: the number of logits, at least 2.
        options: keyword arguments of the network's builder.
        builder: a callable without arguments that returns an `nn.Module`; replaces the network of that name.
        buffers: how averaging treats batch-norm statistics: "average" them, or take the "first" model's.
        projection: width of two layers between extractor and classifier; 0 for none.
        bn_head: whether batch norm without parameters follows the extractor.
        tokens: whether inputs are token numbers. For a listed network this follows from the name.
        channel_first: whether images must have the channel first in memory too, as some modules of users need.
        head: the layer at which a module without two parts is split; see `headwater.models.parts`.
        freeze: "extractor" to train the classifier alone; see `headwater.models.freezing`.
        adapter: "lora" to train low-rank additions to the extractor's layers, and the classifier.
        rank: of an adapter.
        alpha: an adapter's output is multiplied by alpha / rank.
        bn: whose constants batch norm has.

    Raises:
        ConfigError: there is no such network or option.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    builder: Callable[[], nn.Module] | None = None
    buffers: Literal["average", "first"] = "average"
    projection: int = 0
    bn_head: bool = False
    tokens: bool = False
    channel_first: bool = False
    head: str | None = None
    freeze: Literal["none", "extractor"] = "none"
    adapter: Literal["none", "lora"] = "none"
    rank: int = 8
    alpha: float = 16.0
    bn: BatchNormOf = "torch"

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
            object.__setattr__(self, "name", auto(self.shape, self.classes, self.tokens))
        if MODELS.check(self.name) in MODELS:
            object.__setattr__(self, "tokens", MODELS[self.name].info.tokens)
            check_names(self.name, self.options, MODELS.load(self.name))

    @property
    def own(self) -> bool:
        """Whether it is a model of the user's own rather than a listed one."""
        return self.builder is not None or self.name not in MODELS

    def build(self) -> nn.Module:
        """Build a new module. Its weights come from torch's global generator, which the caller seeds."""
        if self.builder is not None:
            module = call(self.name, self.builder, {})
        elif self.name in MODELS:
            module = MODELS.load(self.name)(self.shape, self.classes, **self.options)
        else:
            module = call(self.name, named(self.name), self.options)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model {self.name!r} gave a {type(module).__name__}; it must return a torch.nn.Module")
        if any(map(is_lazy, module.parameters())):
            self._sized(module)
        net: nn.Module = self._headed(module) if self.projection or self.bn_head else module
        net = as_in_keras(net) if self.bn == "keras" else net
        if self.freeze == self.adapter == "none":
            return net
        from headwater.models.freezing import partly_trained

        return partly_trained(net, self)

    def probe(self, rows: int = 2) -> Tensor:
        """Artificial inputs of the right shape and type, to call a module with.

        Args:
            rows: how many.
        """
        if self.tokens:
            return torch.ones(rows, *self.shape, dtype=torch.int64)
        return torch.linspace(-1, 1, rows * math.prod(self.shape)).view(rows, *self.shape)

    def _sized(self, module: nn.Module) -> None:
        """Initialise lazy layers, which take their size from the first input."""
        mode = module.training
        try:
            with torch.no_grad():
                module.eval()(self.probe())
        except Exception as error:  # a user's module may raise anything
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(
                f"model {self.name!r} has layers without a size, and inputs of shape {self.shape} do not give them one "
                f"({reason}); give sizes where you build it"
            ) from error
        module.train(mode)
        if left := [name for name, parameter in module.named_parameters() if is_lazy(parameter)]:
            raise ConfigError(
                f"model {self.name!r} never calls the layer of {left[0]!r}, which has no size yet; give it one, or "
                "leave the layer out"
            )

    def _headed(self, net: nn.Module) -> Net:
        """The net with `projection` and `bn_head` between its extractor and its classifier."""
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
        """The module on the meta device: names, shapes and checks of the options, without memory and random draws.

        A model of the user's own is built normally, each time, and torch's generator is restored. The outline of a
        listed network is built once and shared, so it must not be changed.
        """
        if not self.own:
            try:
                return self._outline
            except (RuntimeError, TypeError, ValueError, OverflowError) as error:
                given = ", ".join(f"{key} = {value!r}" for key, value in self.options.items()) or "these options"
                raise ConfigError(f"model {self.name!r} cannot be built with {given[:200]} ({said(error)})") from error
        with torch.random.fork_rng(devices=[]):
            return self.build()

    @cached_property
    def _outline(self) -> nn.Module:
        with torch.device("meta"), SkipDraws():
            return self.build()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_outline"}  # other processes build theirs

    def count(self) -> int:
        """The number of trainable parameters."""
        return sum(p.numel() for p in self.outline().parameters() if p.requires_grad)


def in_two_parts(module: nn.Module) -> bool:
    """Whether a model has an extractor (`features`) and a `classifier`."""
    return all(isinstance(getattr(module, part, None), nn.Module) for part in ("features", "classifier"))


def normalise(kind: str, channels: int, groups: int) -> nn.Module:
    """The normalisation layer for feature maps.

    Args:
        kind: "batch", "group" or "none".
        channels: of the feature maps.
        groups: of group norm; must divide the channels.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        if groups < 1 or channels % groups:
            raise ConfigError(f"groups must divide the {channels} channels it normalises, got {groups}; 2 always does")
        return nn.GroupNorm(groups, channels)
    return nn.Identity()


def choose(model: str, option: str, value: object, accepted: tuple[str, ...]) -> None:
    """Refuse an option's value that is not one of the accepted words.

    Args:
        model: its name, for the message.
        option: its name.
        value: the user's.
        accepted: the words.
    """
    if value not in accepted:
        raise ConfigError(
            f"{model} does not know {option} {value!r}{nearest(str(value), accepted)} (accepted: {', '.join(accepted)})"
        )


def at_least_one(model: str, **options: object) -> None:
    """Refuse options that are not whole numbers of at least 1.

    Args:
        model: its name, for the message.
        **options: name → the user's value.
    """
    for option, value in options.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"{model} takes {option} as a whole number of at least 1, got {value!r}")


def widths_of(model: str, option: str, value: object) -> tuple[int, ...]:
    """Check a list of layer widths.

    Args:
        model: its name, for the message.
        option: its name.
        value: the user's; a single number is a list of one.
    """
    items = (value,) if isinstance(value, int) else value
    if not isinstance(items, (tuple, list)) or not all(type(w) is int and w > 0 for w in items):
        raise ConfigError(
            f"{model} takes {option} as a list of positive whole numbers, such as [200, 200], got {value!r}"
        )
    return tuple(items)


def image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """(channels, height, width) of images that are at least `smallest` px wide and high; else a ConfigError.

    Args:
        model: its name, for the message.
        shape: of one input.
        smallest: least width and height in px.
    """
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"{model} takes images (channels, height, width) of at least {smallest} x {smallest} px, "
            f"got inputs of shape {shape}; use 'mlp' for these"
        )
    return shape[0], shape[1], shape[2]


def token_length(model: str, shape: tuple[int, ...]) -> int:
    """The number of tokens per input; a ConfigError if inputs are not rows of tokens.

    Args:
        model: its name, for the message.
        shape: of one input.
    """
    if len(shape) != 1:
        raise ConfigError(f"{model} takes rows of token numbers, got inputs of shape {shape}; use 'cnn' or 'mlp'")
    return shape[0]


def feature_layer(model: str, before: int, features: object) -> list[nn.Module]:
    """A linear layer from `before` to `features` outputs; no layer for 0.

    Args:
        model: its name, for the message.
        before: inputs of the layer.
        features: its outputs.
    """
    if type(features) is not int or features < 0:
        raise ConfigError(f"{model} takes features as a whole number, 0 for its own, got {features!r}")
    return [nn.Linear(before, features)] if features else []
