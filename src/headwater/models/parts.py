"""A model as extractor and classifier: its own two parts, or split at the linear layer that computes its output.

A module without `features` and `classifier` is not changed: its classifier is that layer, and its features are that
layer's input.
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
    """The second part of a module. `head` is the layer at which it is split, None if it has two parts.

    Args:
        module: the model.
        head: the layer at which it is split, or None.
    """
    return module.get_submodule("classifier" if head is None else head)


def extractor_of(module: nn.Module, head: str | None, layer: nn.Module | None = None) -> Extractor:
    """The first part as a function.

    Args:
        module: the model.
        head: the layer at which it is split, None if it has two parts.
        layer: the classifier, if another module shares it under another name.
    """
    if head is None:
        return module.get_submodule("features")
    classifier = layer or classifier_of(module, head)

    def input_of_classifier(x: Tensor) -> Tensor:
        with _recording({"": classifier}) as calls:
            module(x)
        return calls[-1].input

    return input_of_classifier


def layers_before(module: nn.Module, head: str | None, method: str) -> nn.Module:
    """The first part as a chain of layers; a ConfigError, with the method's name, if the module is no chain.

    Args:
        module: the model.
        head: the layer at which it is split, or None.
        method: its name, for the message.
    """
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
class LayerCall:
    """Record of a call of a layer.

    Args:
        name: of the layer.
        input: of the call.
        output: of the call.
        versions: torch's counters of in-place changes of both, at the time of the call.
    """

    name: str
    input: Tensor
    output: Tensor
    versions: tuple[int, int]

    def unchanged(self) -> bool:
        """Whether neither tensor was changed in place since."""
        return self.versions == (self.input._version, self.output._version)


@contextmanager
def _recording(layers: dict[str, nn.Module]) -> Iterator[list[LayerCall]]:
    """Record the calls of some layers, in order."""
    calls: list[LayerCall] = []

    def hook(name: str) -> Callable[..., None]:
        def record(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
            taken = inputs[0] if inputs else next(iter(named.values()))
            calls.append(LayerCall(name, taken, output, (taken._version, output._version)))

        return record

    handles = [layer.register_forward_hook(hook(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def split(module: nn.Module, x: Tensor) -> str | None:
    """The name of the layer at which a module can be split; None if it has two parts of its own.

    The module is called in evaluation and in training mode, so statistics of batch norm change.

    Args:
        module: the model.
        x: inputs to call it with.

    Raises:
        ValueError: it cannot be split; the message says why.
    """
    if in_two_parts(module) and _parts_hold(module, x):
        return None
    evaluated, trained = (_head(module.train(mode), x) for mode in (False, True))
    if evaluated != trained:
        raise ValueError(f"its output is that of {evaluated!r} in evaluation and of {trained!r} in training")
    return evaluated


@torch.no_grad()
def _parts_hold(module: nn.Module, x: Tensor) -> bool:
    """Whether a module really computes `classifier(features(x))`, with one row of features per sample."""
    module.eval()
    try:
        features = module.features(x)  # type: ignore[operator]
        whole, joined = module(x), module.classifier(features)  # type: ignore[operator]
    except Exception:  # attributes of these names may have another purpose
        return False
    return features.dim() == 2 and whole.shape == joined.shape and torch.equal(whole, joined)


@torch.no_grad()
def _head(module: nn.Module, x: Tensor) -> str:
    linear: dict[str, nn.Module] = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    with _recording(linear) as calls:
        output = module(x)
    if not calls:
        raise ValueError("it calls no linear layer that could be its classifier")
    last = calls[-1]
    own = [call for call in calls if _same(call.output, output)]
    if not own:
        when = " in training" if module.training else ""
        raise ValueError(
            f"its output{when} is not that of a linear layer as it comes: after {last.name!r} something else follows, "
            "such as a softmax, a dropout or a change of shape"
        )
    call = own[-1]
    if not call.unchanged():
        raise ValueError(f"what goes into its layer {call.name!r}, or comes out of it, is overwritten afterwards")
    again: Tensor = linear[call.name](call.input)
    if not module.training and not torch.equal(again, output):
        raise ValueError(f"its layer {call.name!r} gives something else when it is called by itself")
    return call.name


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same memory, shape and strides."""
    alike = one.shape == other.shape and one.stride() == other.stride()
    return alike and one.data_ptr() == other.data_ptr()


def width_of(spec: ModelSpec) -> int | None:
    """The number of features of a model in two parts, by its linear classifier; None if it has no such parts.

    Args:
        spec: of the model.
    """
    outline = spec.outline()
    if spec.head is None and not in_two_parts(outline):
        return None
    parts = classifier_of(outline, spec.head).modules()
    return next((layer.in_features for layer in parts if isinstance(layer, nn.Linear)), None)


def need_parts(spec: ModelSpec, who: str) -> None:
    """Refuse a model that cannot be used in two parts.

    Args:
        spec: of the model.
        who: what needs the parts, for the message.

    Raises:
        ConfigError: it has no two parts and cannot be split.
    """
    if not spec.own or spec.head is not None:
        return
    try:
        with torch.random.fork_rng(devices=[]):
            split(spec.build(), spec.probe())
    except Exception as error:  # a ValueError with the reason, or any error of the module
        raise ConfigError(
            f"{who} needs a model in two parts, extractor and classifier, and {spec.name!r} cannot be split at its "
            f"last linear layer: {error}. Return that layer's output itself, or give the model parts `features` and "
            "`classifier` that its forward calls one after the other"
        ) from error
