"""The architectures of a run's clients, from configuration, method and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from headwater.config import Config
from headwater.config.fields import check, settings_of
from headwater.config.sections import network
from headwater.data.split import Split
from headwater.errors import ConfigError, nearest
from headwater.models import MODELS, auto
from headwater.models.base import ModelSpec
from headwater.models.building import has_batch_norm
from headwater.models.fit import fitted
from headwater.models.parts import need_parts


def specs_of(
    config: Config, kind: Any, split: Split, maker: Callable[[], nn.Module] | None
) -> tuple[ModelSpec, tuple[ModelSpec, ...]]:
    """The architectures of the clients.

    Args:
        config: the configuration.
        kind: the method's class, whose defaults apply where nothing was set.
        split: the data, which decides shape, classes and, for "auto", the network.
        maker: builds the model, instead of `config.model.name`.

    Returns:
        The first one, and the further ones of `model.also`.
    """
    wanted, defaults = config.model, kind.defaults(config.algorithm).get("model", {})
    tokens = split.words is not None
    name = defaults.get("name", "auto") if wanted.name == "auto" and not tokens else wanted.name  # none is for texts
    name = auto(split.shape, split.classes, tokens) if name == "auto" else name

    def spec(name: str, options: Mapping[str, Any]) -> ModelSpec:
        listed = name in MODELS and maker is None
        known = settings_of(MODELS.load(name)) if listed else {}
        method_defaults = {key: value for key, value in defaults.items() if key in known}
        projection = defaults.get("projection", 0) if wanted.projection is None and listed else wanted.projection or 0
        filled = {key: setting.default for key, setting in known.items()} | method_defaults
        if split.words is not None and "words" in known:
            filled["words"] = split.words  # an embedding has one row per token of the vocabulary
        filled |= dict(options)
        more = (maker, wanted.buffers, projection, wanted.bn_head, split.words is not None)
        whole = ModelSpec(name, split.shape, split.classes, filled, *more)
        partly = replace(whole, freeze=wanted.freeze, adapter=wanted.adapter, rank=wanted.rank, bn=wanted.bn)
        return fitted(replace(partly, alpha=wanted.adapter_alpha), split.words)

    main = spec(name, wanted.options)
    if wanted.also and not kind.INFO.mixed_architectures:
        raise ConfigError(
            f"model.also gives clients unequal architectures, which method {config.method!r} cannot combine; "
            "remove it, or use a method that can, such as 'feddf'"
        )
    further = [network(entry) for entry in wanted.also]
    seen = [main.name]
    for other, options in further:
        if (other not in MODELS and ":" not in other) or other in seen:
            raise ConfigError(
                f"model.also takes listed models or 'package.module:Name', other than model.name and each once, got "
                f"{other!r}{nearest(other, MODELS)} (known: {', '.join(MODELS)})"
            )
        seen.append(other)
        known = settings_of(MODELS.load(other)) if other in MODELS else {}
        for key in options:
            if key in known:
                options[key] = check(f"model.also, {other}: {key}", known[key], options[key])
    specs = (main, *(spec(other, options) for other, options in further))
    if wanted.bn != "torch" and not any(has_batch_norm(each.outline()) for each in specs):
        raise ConfigError(
            f"model.bn = {wanted.bn!r} sets constants of batch norm, and {main.name!r} as it is set has none; remove it"
        )
    for each in specs:
        each.outline()  # refuses a model that cannot be built
        if kind.INFO.features:
            need_parts(each, f"method {config.method!r}")
    return main, specs[1:]
