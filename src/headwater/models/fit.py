"""Checks whether a model fits the data. A model of the user's own is built and called for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from headwater.errors import ConfigError, HeadwaterError, said
from headwater.models import MODELS
from headwater.models.base import ModelSpec
from headwater.models.parts import need_parts, split


def fitted(spec: ModelSpec, words: int | None) -> ModelSpec:
    """Check that a model can be trained on inputs of its shape.

    Args:
        spec: of the model.
        words: how many token numbers there are; None if inputs are values.

    Returns:
        The spec; for a model of the user's own with `channel_first` and `head` filled in.

    Raises:
        ConfigError: it cannot; the message says why.
    """
    if not spec.own:
        _check_tokens(spec, words)
        return spec
    freeze, adapter = spec.freeze, spec.adapter
    spec = replace(spec, freeze="none", adapter="none")  # until it is known where the module can be split
    with torch.random.fork_rng(devices=[]):
        module = _built(spec)
        _check_numbers(spec, module)
        if not callable(getattr(module, "loss", None)):  # with a loss of its own, outputs may be anything
            for training, rows in ((False, 2), (False, 1), (True, 2)):
                _check_output(spec, module.train(training), spec.probe(rows))
        spec = replace(spec, channel_first=_needs_channel_first(module, spec.probe()))
        try:
            return replace(spec, head=split(module, spec.probe()), freeze=freeze, adapter=adapter)
        except Exception as error:  # any error; `need_parts` reports it if a method needs two parts
            if freeze != "none" or adapter != "none":
                need_parts(spec, "model.freeze" if adapter == "none" else "model.adapter")
                raise ConfigError(f"model {spec.name!r} cannot be split ({said(error)})") from error
            return spec


def _built(spec: ModelSpec) -> nn.Module:
    try:
        return spec.build()
    except HeadwaterError:
        raise
    except Exception as error:  # the user's own code may raise anything
        reason = f"{type(error).__name__}: {said(error)}"
        raise ConfigError(f"model {spec.name!r} could not be built ({reason}); correct the function") from error


def _needs_channel_first(module: nn.Module, x: Tensor) -> bool:
    """Whether a module depends on the memory layout of images, as `view` does, and so cannot use channels_last."""
    if x.dim() != 4:
        return False
    turned = x.contiguous(memory_format=torch.channels_last)
    try:
        module.train()(turned).sum().backward()
        module.eval()(turned)
    except RuntimeError:
        return True
    except Exception:  # the output is no tensor; the module has a loss of its own
        return False
    return False


def _check_tokens(spec: ModelSpec, words: int | None) -> None:
    if words is None and spec.tokens:
        raise ConfigError(
            f"model {spec.name!r} reads token numbers, but this data holds values; use model.name = 'auto'"
        )
    if words is None:
        return
    if not spec.tokens:
        accepted = " or ".join(repr(name) for name, part in MODELS.items() if part.info.tokens)
        raise ConfigError(f"model {spec.name!r} takes values, but this data holds token numbers; use {accepted}")
    known: Any = next(part.words for part in spec.outline().modules() if hasattr(part, "words"))
    if words > known:
        way = f"set model.words = {words}" if "words" in spec.options else "make tokens with its own tokenizer"
        raise ConfigError(
            f"this data has {words} token numbers, and model {spec.name!r} knows the first {known} of them; {way}"
        )


def _check_numbers(spec: ModelSpec, module: nn.Module) -> None:
    parameters = list(module.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        what = "has only frozen parameters" if parameters else "has no parameters"
        raise ConfigError(f"model {spec.name!r} {what}, so there is nothing to train")
    kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    if len(kinds) > 1:
        raise ConfigError(
            f"model {spec.name!r} has parameters of several kinds ({', '.join(kinds)}); make them one, as .float() does"
        )


def _check_output(spec: ModelSpec, module: nn.Module, x: Tensor) -> None:
    when = "in training" if module.training else "in evaluation"
    inputs = f"{len(x)} inputs" if len(x) > 1 else "a single input"
    written = x._version
    try:
        with torch.set_grad_enabled(module.training):
            output = module(x)
    except Exception as error:  # a user's module may raise anything
        kind = "token numbers" if spec.tokens else "values (float32)"
        raise ConfigError(
            f"model {spec.name!r} cannot be called {when} with {inputs} of shape {spec.shape} holding {kind}: "
            f"{said(error)}"
        ) from error
    if isinstance(output, Tensor) and module.training and not output.requires_grad:
        raise ConfigError(
            f"the output of model {spec.name!r} has no gradient, so it cannot be trained; leave out detach(), "
            "no_grad() and argmax()"
        )
    if x._version > written:
        raise ConfigError(
            f"model {spec.name!r} overwrites its inputs {when}, which are used again; use no in-place operation on "
            "them, or begin with x = x.clone()"
        )
    wanted = (len(x), spec.classes)
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"model {spec.name!r} gives a {type(output).__name__} {when}; it must return one tensor of shape {wanted}"
        )
    if tuple(output.shape) != wanted or not output.is_floating_point():
        got = tuple(output.shape) if output.is_floating_point() else output.dtype
        raise ConfigError(
            f"model {spec.name!r} gives {got} {when} for {inputs}, and must give {wanted}: one logit for each of "
            f"{spec.classes} classes"
        )
