"""Builds stage specs, methods and partition schemes from checked values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from headwater.config.catalog import stage_fields
from headwater.config.fields import MISSING, check, describe, settings_of
from headwater.errors import ConfigError, nearest
from headwater.specs import DistillSpec, LocalSpec

Built = TypeVar("Built")
Spec = LocalSpec | DistillSpec


def spec_from(section: str, kind: type[Built], values: Mapping[str, Any]) -> Built:
    """Build a stage's spec.

    Args:
        section: its section, for messages.
        kind: `LocalSpec` or `DistillSpec`.
        values: the section's keys.
    """
    return build(section, kind, values)


def method_from(kind: type[Built], options: Mapping[str, Any], specs: Mapping[str, Spec | None]) -> Built:
    """Build a method.

    Args:
        kind: its class.
        options: the keys of `[algorithm]`.
        specs: stage section → spec; None leaves the default.
    """
    fields = stage_fields(kind)
    given = {fields.get(stage, stage): spec for stage, spec in specs.items() if spec is not None}
    return build("algorithm", kind, {key: value for key, value in options.items() if key != "name"}, given)


def build(section: str, kind: type[Built], values: Mapping[str, Any], ready: Mapping[str, Any] | None = None) -> Built:
    """An instance of `kind` from values that are checked as keys of a section; `ready` values are not checked.

    Raises:
        ConfigError: a key is unknown or missing, or a value does not fit.
    """
    accepted = settings_of(kind)
    ready = ready or {}
    for key in [*values, *ready]:
        if key not in accepted:
            hint = nearest(key, accepted)
            raise ConfigError(f"there is no setting called '{section}.{key}'{hint} (accepted: {', '.join(accepted)})")
    fit = {key: check(f"{section}.{key}", accepted[key], value) for key, value in values.items()}
    for key, setting in accepted.items():
        if setting.default is MISSING and key not in fit and key not in ready:
            raise ConfigError(f"{section}.{key} is needed and was not given; it must be {describe(setting.annotation)}")
    try:
        return kind(**fit, **ready)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first.get("ctx", {}).get("error", first["msg"])
        raise ConfigError(f"{'.'.join([section, *map(str, first['loc'])])}: {reason}") from None
