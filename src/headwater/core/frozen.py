"""What a model never changes: frozen parameters, and the buffers of parts that stay in evaluation mode.

It is not in the vector that travels. Every process builds it from the model's spec, and it is identified by a SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

HELD = "_headwater_held"  # attribute of a part that stays in evaluation mode while the model is trained


def hold(parts: Iterable[nn.Module]) -> None:
    """Freeze the own parameters of some parts, and keep the parts in evaluation mode while others are trained."""
    for part in parts:
        for parameter in part.parameters(recurse=False):
            parameter.requires_grad_(False)
        setattr(part, HELD, True)
        part.training = False


def held_parts(module: nn.Module) -> list[nn.Module]:
    """The parts that `hold` was called for."""
    return [part for part in module.modules() if getattr(part, HELD, False)]


def set_training(module: nn.Module, held: Iterable[nn.Module]) -> None:
    """Training mode for all parts but those that are held."""
    module.train()
    for part in held:
        part.training = False


def frozen_views(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module that never change, by their state names; not copied.

    These are the parameters without a gradient. In a module that has such parameters, they are also the buffers of
    parts that stay in evaluation mode when the module is trained. Any other buffer may change, as statistics of batch
    norm do.
    """
    frozen = {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}
    if not frozen:
        return {}
    stored, still = set(module.state_dict()), _always_evaluated(module)
    for name, buffer in module.named_buffers():
        changes = buffer.is_floating_point() or buffer.dtype == torch.int64  # other kinds are constants of the module
        if name in stored and changes and name.rpartition(".")[0] in still:
            frozen[name] = buffer  # type: ignore[assignment]
    return dict(frozen)


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Copies of `frozen_views`, without gradients."""
    return {name: tensor.detach().clone() for name, tensor in frozen_views(module).items()}


def frozen_bytes(module: nn.Module) -> int:
    """The size of what is frozen; `module` may be an outline."""
    return sum(tensor.nbytes for tensor in frozen_views(module).values())


def _always_evaluated(module: nn.Module) -> set[str]:
    """Names of the parts that stay in evaluation mode when the module is set to training."""
    modes = [(part, part.training) for part in module.modules()]
    set_training(module, held_parts(module))
    names = {name for name, part in module.named_modules() if not part.training}
    for part, mode in modes:
        part.training = mode
    return names
