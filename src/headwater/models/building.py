"""Helpers to build networks: calls of their functions, with messages about what does not fit, and batch norm."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from headwater.errors import ConfigError, nearest
from headwater.models import MODELS
from headwater.registry import cannot_return

BatchNormOf = Literal["torch", "keras"]
# Constants of batch norm in Keras: by how much a batch changes the running statistics (1 - 0.99), and what is added to
# a variance.
MOMENTUM, EPS = 0.01, 1e-3


class SkipDraws(TorchFunctionMode):
    """Skips random initialisation on the meta device, for which torch would load its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def check_names(name: str, options: Mapping[str, Any], builder: Callable[..., Any]) -> None:
    """Refuse options that the function of a listed model does not have."""
    known = [p.name for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for key in options:
        if key not in known:
            accepted = f"accepted: {', '.join(known)}" if known else "it has no options"
            raise ConfigError(f"model {name!r} has no option {key!r}{nearest(key, known)} ({accepted})")


def named(name: str) -> Any:
    """The function of a listed model, or the user's own at "package.module:Name"."""
    if cannot_return(function := MODELS.load(name), nn.Module):
        raise ConfigError(f"model {name!r} is not called, since it returns no torch.nn.Module; name one that does")
    return function


def call(name: str, function: Any, options: Mapping[str, Any]) -> Any:
    """Call the user's own function with options; refuses what does not fit its signature."""
    if not callable(function):
        raise ConfigError(f"{name!r} is not callable; it must be a function or class that returns a torch.nn.Module")
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        call = f"with the options {dict(options)}" if options else "without arguments"
        way = "" if options else "; give a function that needs none, such as lambda: MyNet(10)"
        raise ConfigError(f"model {name!r} cannot be called {call} ({error}){way}") from error
    except ValueError:  # some compiled functions have no signature
        pass
    return function(**options)


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a model has a layer of batch norm."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


def as_in_keras(module: nn.Module) -> nn.Module:
    """Give every batch norm of a model the constants of Keras. Returns the model."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.momentum, layer.eps = MOMENTUM, EPS
    return module
