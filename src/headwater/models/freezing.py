"""Which part of a network is trained: its classifier alone, or low-rank adapters (LoRA) and the classifier.

Everything else is frozen, so it does not travel in rounds (see `headwater.core.params`). A frozen extractor is in
evaluation mode also while the classifier is trained, so that its features of a row never change.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from torch import nn

from headwater.core.params import hold
from headwater.errors import ConfigError, MissingExtra
from headwater.models.base import ModelSpec, in_two_parts
from headwater.models.parts import classifier_of

ADAPTED = ("Linear", "Conv2d", "Conv1D")  # names of the layers that adapters are added to; the last is of transformers


def partly_trained(module: nn.Module, spec: ModelSpec) -> nn.Module:
    """The module with its extractor frozen, or with adapters in it, as a spec asks for.

    Args:
        module: the network in two parts; it is changed.
        spec: its description.

    Raises:
        ConfigError: both were asked for, the network is not in two parts, or nothing in it can be adapted.
        MissingExtra: the library for adapters is not installed.
    """
    asked = f"model.freeze = {spec.freeze!r}" if spec.adapter == "none" else f"model.adapter = {spec.adapter!r}"
    if spec.freeze != "none" and spec.adapter != "none":
        raise ConfigError(
            f"model.freeze = {spec.freeze!r} trains the classifier alone, and model.adapter = {spec.adapter!r} trains "
            "the extractor through adapters; set one of them"
        )
    if spec.head is None and not in_two_parts(module):
        raise ConfigError(
            f"{asked} needs a model in two parts, extractor and classifier, and {spec.name!r} cannot be split at its "
            "last linear layer; give it parts `features` and `classifier`"
        )
    classifier = classifier_of(module, spec.head)
    if not any(parameter.requires_grad for parameter in classifier.parameters()):
        raise ConfigError(f"{asked} trains the classifier, and that of {spec.name!r} has no parameters to train")
    own = set(classifier.modules())
    if spec.adapter == "none":
        hold(part for part in module.modules() if part not in own)
        return module
    names = [n for n, part in module.named_modules() if part not in own and type(part).__name__ in ADAPTED]
    if not names:
        raise ConfigError(
            f"{asked} adds to linear layers and convolutions of the extractor, and that of {spec.name!r} has none; use "
            "model.freeze, or another model"
        )
    _add_lora(module, names, spec)
    for parameter in classifier.parameters():
        parameter.requires_grad_(True)
    return module


def _add_lora(module: nn.Module, names: list[str], spec: ModelSpec) -> None:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("model.adapter = 'lora'", "adapters") from error
    wanted = "|".join(re.escape(name) for name in names)
    options: dict[str, Any] = {"r": spec.rank, "lora_alpha": spec.alpha, "target_modules": f"(?:{wanted})"}
    config = peft.LoraConfig(bias="none", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about layers of other libraries that it adapts all the same
        try:
            peft.inject_adapter_in_model(config, module)
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ConfigError(f"model {spec.name!r} cannot be adapted by LoRA ({reason}); use model.freeze") from error
