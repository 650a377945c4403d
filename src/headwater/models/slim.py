"""A network as a chain of layers, and its last stage with a fraction of its channels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn import functional as F

from headwater.errors import ConfigError
from headwater.models.base import Net
from headwater.models.resnet import Block, PaddedSubsample
from headwater.models.wrn import PreBlock

Chain = tuple[tuple[str, nn.Module], ...]
WEIGHTED = (nn.Linear, nn.Conv2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)
# Layers that treat each channel by itself and map 0 to 0: they commute with a permutation of the channels.
CHANNELWISE = (
    *(nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Dropout, nn.Dropout2d),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten),
)


def chain(module: nn.Module, name: str = "") -> Chain:
    """The layers of a net in order, by name. Sequences are expanded; any other module is one layer.

    Args:
        module: the net.
        name: prefix of the names.
    """
    if not isinstance(module, nn.Sequential | Net):
        return ((name, module),)
    parts = [(key, child) for key, child in module._modules.items() if child is not None]  # one module may occur twice
    return tuple(part for key, child in parts for part in chain(child, f"{name}.{key}" if name else key))


def weighted(net: nn.Module, method: str) -> tuple[str, ...]:
    """The names of the linear and convolutional layers of a plain chain, in order.

    Args:
        net: the model.
        method: for messages.

    Raises:
        ConfigError: the model has normalisation, shortcuts or other layers, or frozen ones.
    """
    parts = chain(net)
    odd = [part for _, part in parts if not isinstance(part, (*WEIGHTED, *CHANNELWISE))]
    odd += [part for _, part in parts if isinstance(part, nn.Conv2d) and part.groups > 1]
    own = [part for _, part in parts if isinstance(part, WEIGHTED)]
    odd += [part for at, part in enumerate(own) if any(part.weight is other.weight for other in own[:at])]
    if odd or not isinstance(parts[-1][1], nn.Linear):
        kind = type(odd[0] if odd else parts[-1][1]).__name__
        raise ConfigError(
            f"{method} matches neurons in chains of linear and convolutional layers without normalisation or shortcuts,"
            f" and this model has a {kind}; use 'mlp', 'vgg9' or 'cnn' with norm = 'none'"
        )
    if any(not parameter.requires_grad for parameter in net.parameters()):
        raise ConfigError(
            f"{method} moves neurons of every layer, and this model has frozen layers; remove model.freeze and "
            "model.adapter, or what freezes parameters in your model"
        )
    return tuple(name for name, part in parts if isinstance(part, WEIGHTED))


def last_stage(features: nn.Module, method: str) -> tuple[Sequence[nn.Module], Sequence[nn.Module]]:
    """The layers before the last stage of an extractor, and that stage.

    The stage is all residual blocks from the last one on that changes the width, or the last convolution with its norm
    and activation; if there is neither, the last linear layer with its activation.

    Args:
        features: the extractor.
        method: for messages.

    Raises:
        ConfigError: there is no stage that can be thinned.
    """
    parts = [part for _, part in chain(features)]
    for kinds in ((Block, PreBlock, nn.Conv2d), (nn.Linear,)):
        places = [i for i, part in enumerate(parts) if isinstance(part, kinds)]
        if places:
            start, end = places[-1], places[-1] + 1
            while start and _keeps_width(parts[start]) and isinstance(parts[start - 1], Block | PreBlock):
                start -= 1
            while end < len(parts) and isinstance(parts[end], (*NORMS, nn.Identity, nn.ReLU, nn.Tanh)):
                end += 1
            stage, after = parts[start:end], [p for p in parts[end:] if list(p.parameters())]
            if all(isinstance(p, (nn.Linear, *NORMS)) for p in after) and getattr(stage[0], "groups", 1) == 1:
                return parts[:start], stage
            break
    raise ConfigError(
        f"{method} runs the last stage of a model at a fraction of its width, and finds no residual block, convolution "
        "or linear layer that it can thin at the end of this one's `features`; use 'mlp', 'cnn' or 'resnet8'"
    )


def _keeps_width(part: nn.Module) -> bool:
    """Whether this is a residual block whose shortcut is its input."""
    return isinstance(part, Block | PreBlock) and isinstance(part.shortcut, nn.Identity | None)


def run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Apply the layers one after another."""
    for part in parts:
        x = part(x)
    return x


def thin(parts: Sequence[nn.Module], x: Tensor, width: float) -> Tensor:
    """Apply a stage with only the first channels of every layer.

    Weights are slices of the stage's own weights, so these get gradients. Running statistics are not changed.

    Args:
        parts: the layers of the stage.
        x: its input, with these channels already.
        width: the share of channels.
    """
    for part in parts:
        x = _thin(part, x, width)
    return x


def channels(count: int, width: float) -> int:
    """How many of `count` channels a layer of this width has.

    Args:
        count: of the full layer.
        width: the share of channels.
    """
    return max(1, round(width * count))


def _thin(part: nn.Module, x: Tensor, width: float) -> Tensor:
    if isinstance(part, Block):
        body, shortcut = thin(list(part.body), x, width), part.shortcut
        if isinstance(shortcut, PaddedSubsample):
            shortcut = PaddedSubsample(body.shape[1] - x.shape[1])
        return F.relu(body + _thin(shortcut, x, width))
    if isinstance(part, PreBlock):
        active = thin(list(part.enter), x, width)
        shortcut_output = x if part.shortcut is None else _thin(part.shortcut, active, width)
        return thin(list(part.body), active, width) + shortcut_output
    if isinstance(part, nn.Sequential):
        return thin(list(part), x, width)
    if isinstance(part, nn.Conv2d):
        weight, bias = _sliced(part, x, width)
        return F.conv2d(x, weight, bias, part.stride, part.padding, part.dilation)
    if isinstance(part, nn.Linear):
        weight, bias = _sliced(part, x, width)
        return F.linear(x, weight, bias)
    if isinstance(part, NORMS):
        return _normed(part, x)
    out: Tensor = part(x)
    return out


def _normed(part: nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm, x: Tensor) -> Tensor:
    first = slice(x.shape[1])
    weight, bias = (None if t is None else t[first] for t in (part.weight, part.bias))
    if isinstance(part, nn.GroupNorm):
        return F.group_norm(x, math.gcd(x.shape[1], part.num_groups), weight, bias, part.eps)
    if part.training or part.running_mean is None or part.running_var is None:
        return F.batch_norm(x, None, None, weight, bias, True, eps=part.eps)
    return F.batch_norm(x, part.running_mean[first], part.running_var[first], weight, bias, False, eps=part.eps)


def _sliced(part: nn.Linear | nn.Conv2d, x: Tensor, width: float) -> tuple[Tensor, Tensor | None]:
    out = channels(part.weight.shape[0], width)
    return part.weight[:out, : x.shape[1]], None if part.bias is None else part.bias[:out]


@contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    """Context in which batch norm does not update its running statistics."""
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
