"""A model as extractor and classifier: by parts of its own, or split at the linear layer that gives its output.

A module that has no `features` and `classifier` is left as it is, with its own names: its classifier is that layer, and
its features are what goes into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwater.errors import ConfigError
from headwater.models.base import ModelSpec, in_two_parts
from headwater.models.slim import chain

Extractor = Callable[[Tensor], Tensor]


def classifier_of(module: nn.Module, head: str | None) -> nn.Module:
    """The second part of a module; `head` names the layer at which it is split, if it has no parts of its own."""
    return module.get_submodule("classifier" if head is None else head)


def extractor_of(module: nn.Module, head: str | None, layer: nn.Module | None = None) -> Extractor:
    """The first part, as a function. `layer` is the classifier, where another module shares it under another name."""
    if head is None:
        return module.get_submodule("features")
    return Tap(module, layer or classifier_of(module, head))


def layers_before(module: nn.Module, head: str | None, method: str) -> nn.Module:
    """The first part as layers that follow one another, for those who look into it."""
    if head is None:
        return module.get_submodule("features")
    parts = chain(module)
    if parts[-1][0] != head:
        raise ConfigError(
            f"{method} looks into the layers before the classifier, and {type(module).__name__} does not tell how "
            "they follow one another; give the model as nn.Sequential, or in parts `features` and `classifier`"
        )
    return nn.Sequential(*(part for _, part in parts[:-1]))


@dataclass(frozen=True)
class Tap:
    """What goes into a layer when its module is called."""

    module: nn.Module
    layer: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        with _listening({"": self.layer}) as heard:
            self.module(x)
        return heard[-1].given


@dataclass(frozen=True)
class Call:
    """A call of a layer: what it was given, what it gave, and how often these had been written to by then."""

    name: str
    given: Tensor
    gave: Tensor
    versions: tuple[int, int]

    def untouched(self) -> bool:
        return self.versions == (self.given._version, self.gave._version)


@contextmanager
def _listening(layers: dict[str, nn.Module]) -> Iterator[list[Call]]:
    """Hear the calls of some layers, in order."""
    heard: list[Call] = []

    def hear(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor], gave: Tensor) -> None:
            taken = given[0] if given else next(iter(named.values()))
            heard.append(Call(name, taken, gave, (taken._version, gave._version)))

        return note

    handles = [layer.register_forward_hook(hear(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def split(module: nn.Module, x: Tensor) -> str | None:
    """The name of the layer to split a module at; None for one with parts of its own. A ValueError tells why not.

    The module is run on `x` both in evaluation and in training, so statistics of batch norm do not stay as they were.
    """
    if in_two_parts(module) and _parts_hold(module, x):
        return None
    asked, trained = (_head(module.train(mode), x) for mode in (False, True))
    if asked != trained:
        raise ValueError(f"its output is that of {asked!r} in evaluation and of {trained!r} in training")
    return asked


@torch.no_grad()
def _parts_hold(module: nn.Module, x: Tensor) -> bool:
    """Whether `classifier` after `features` is really what a module does, with features in rows."""
    module.eval()
    try:
        features = module.features(x)  # type: ignore[operator]
        whole, joined = module(x), module.classifier(features)  # type: ignore[operator]
    except Exception:  # parts of that name may be meant for something else
        return False
    return features.dim() == 2 and whole.shape == joined.shape and torch.equal(whole, joined)


@torch.no_grad()
def _head(module: nn.Module, x: Tensor) -> str:
    linear: dict[str, nn.Module] = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    with _listening(linear) as heard:
        output = module(x)
    if not heard:
        raise ValueError("it calls no linear layer that could be its classifier")
    last = heard[-1]
    own = [call for call in heard if _same(call.gave, output)]
    if not own:
        when = " in training" if module.training else ""
        raise ValueError(
            f"its output{when} is not that of a linear layer as it comes: after {last.name!r} something else follows, "
            "such as a softmax, a dropout or a change of shape"
        )
    call = own[-1]
    if not call.untouched():
        raise ValueError(f"what goes into its layer {call.name!r}, or comes out of it, is overwritten afterwards")
    again: Tensor = linear[call.name](call.given)
    if not module.training and not torch.equal(again, output):
        raise ValueError(f"its layer {call.name!r} gives something else when it is called by itself")
    return call.name


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers in the same place."""
    alike = one.shape == other.shape and one.stride() == other.stride()
    return alike and one.data_ptr() == other.data_ptr()


def width_of(spec: ModelSpec) -> int | None:
    """How many features a model in two parts has, as its linear classifier tells."""
    outline = spec.outline()
    if spec.head is None and not in_two_parts(outline):
        return None
    parts = classifier_of(outline, spec.head).modules()
    return next((layer.in_features for layer in parts if isinstance(layer, nn.Linear)), None)


def need_parts(spec: ModelSpec, who: str) -> None:
    """Refuse a model that cannot be used in two parts, with the reason."""
    if not spec.own or spec.head is not None:
        return
    try:
        with torch.random.fork_rng(devices=[]):
            split(spec.build(), spec.probe())
    except Exception as error:  # the reason, or whatever the module does
        raise ConfigError(
            f"{who} needs a model in two parts, extractor and classifier, and {spec.name!r} cannot be split at its "
            f"last linear layer: {error}. Return that layer's output itself, or give the model parts `features` and "
            "`classifier` that its forward calls one after the other"
        ) from error
