"""Single settings: what each accepts, the check of a value, and the error message for an invalid one.

The same functions are used for the sections of the configuration, dataclasses of methods and partition schemes, and
builders of models and data sets, so that all error messages have the same form.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from headwater.errors import ConfigError, nearest

NONE = "none"  # TOML has no null; this word stands for "explicitly without"
MISSING: Any = inspect.Parameter.empty
Built = TypeVar("Built")
Share = Annotated[float, Gt(0), Le(1)]


class Section(BaseModel):
    """Base class of the sections of a configuration: frozen, unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Says:
    """Metadata for `Annotated[...]`: describes in error messages what a setting accepts."""

    words: str


@dataclass(frozen=True)
class Setting:
    """What one key accepts, and its value when it is left out."""

    annotation: Any
    default: Any = MISSING


def settings_of(declared: Any) -> dict[str, Setting]:
    """The settings that a pydantic model or dataclass, a plain dataclass or a builder function declares."""
    try:
        return dict(_settings(declared))
    except TypeError:  # a callable that cannot be hashed
        return _settings.__wrapped__(declared)


@cache
def _settings(declared: Any) -> dict[str, Setting]:
    infos: Mapping[str, FieldInfo] | None = getattr(declared, "__pydantic_fields__", None)
    if infos is not None:
        return {name: Setting(_whole(info), _default(info)) for name, info in infos.items() if info.init is not False}
    hints = get_type_hints(declared, include_extras=True)
    if dataclasses.is_dataclass(declared):
        return {f.name: Setting(hints[f.name], _plain_default(f)) for f in dataclasses.fields(declared) if f.init}
    parameters = inspect.signature(declared).parameters.values()
    return {p.name: Setting(hints.get(p.name, Any), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}


def named_parameters(function: Any) -> dict[str, Setting] | None:
    """The settings of a function or class of the user's own: every parameter that can be given by name.

    Returns:
        The parameters without defaults, so that the function's own defaults apply; None if it takes arbitrary keywords,
        has no signature, or its annotations cannot be resolved.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
    except (TypeError, ValueError, NameError, AttributeError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {p.name: Setting(hints.get(p.name, Any)) for p in named}


def check(key: str, setting: Setting, value: Any) -> Any:
    """Return the value in the setting's own type. Raises ConfigError, with the key, if it does not fit."""
    value = plain(value)
    annotation = setting.annotation
    if (value is None or value == NONE) and _optional(annotation):
        return None
    try:
        # Strict validation of JSON is the strictest one that still accepts a list for a tuple and 1 for 1.0.
        return _adapter(annotation).validate_json(json.dumps(value, allow_nan=False), strict=True)
    except (ValueError, TypeError) as error:
        close = nearest(value, _literals(annotation)) if isinstance(value, str) else ""
        wanted = describe(annotation)
        if not isinstance(error, (ValidationError, TypeError)):  # `json` refuses NaN and infinity
            wanted = wanted.replace("a number", "a finite number")
        raise ConfigError(f"{key} must be {wanted}, got {shown(value)}{close}") from None


def build(section: str, kind: type[Built], values: Mapping[str, Any], ready: Mapping[str, Any] | None = None) -> Built:
    """Build a stage's spec, a method or a partition scheme.

    Args:
        section: its section, for messages.
        kind: its class.
        values: the section's keys, which are checked.
        ready: further arguments, which are not checked.

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
    except (ValidationError, ConfigError) as error:
        original = error if isinstance(error, ValidationError) else error.__context__
        if not isinstance(original, ValidationError):
            raise
        first = original.errors()[0]
        reason = first.get("ctx", {}).get("error", first["msg"])
        raise ConfigError(f"{'.'.join([section, *map(str, first['loc'])])}: {reason}") from None


def plain(value: Any) -> Any:
    """Convert tuples, paths and NumPy scalars to types that TOML has."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value) if hasattr(value, "__fspath__") else value


def shown(value: Any) -> str:
    """A value as a user would have typed it, cut to a readable length."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 70 else text[:67] + "..."


def describe(annotation: Any) -> str:
    """What a type accepts, in words."""
    said = [part.words for part in get_args(annotation) if isinstance(part, Says)]
    if said:
        return said[0]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [text for part in parts[1:] for text in _bounds(part)]
        return " ".join([describe(parts[0]), " and ".join(bounds)]).strip()
    if origin is Literal:
        return "one of " + ", ".join(repr(word) for word in parts) if len(parts) > 1 else repr(parts[0])
    if origin in (Union, types.UnionType):
        return " or ".join(f"'{NONE}'" if part is type(None) else describe(part) for part in parts)
    if origin in (list, tuple, Sequence) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return "a list of " + _PLURAL.get(parts[0] if parts else Any, "values")
    return _WORDS.get(annotation, "a value of another kind")


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a table",
    Any: "any value",
}
_BOUNDS: dict[Any, str] = {Ge: "of at least", Gt: "above", Le: "of at most", Lt: "below"}
_PLURAL: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "words"}


def _bounds(part: Any) -> list[str]:
    if isinstance(part, FieldInfo):
        return [text for inner in part.metadata for text in _bounds(inner)]
    words = _BOUNDS.get(type(part))
    return [f"{words} {getattr(part, type(part).__name__.lower())}"] if words else []


def _literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [word for word in get_args(annotation) if isinstance(word, str)]
    return [word for part in get_args(annotation) for word in _literals(part)]


def _optional(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _optional(get_args(annotation)[0])
    return annotation is type(None) or type(None) in get_args(annotation)


def _whole(info: FieldInfo) -> Any:
    """A field's annotation together with its constraints, which pydantic stores separately."""
    annotation: Any = info.annotation
    for part in info.metadata:
        annotation = Annotated[annotation, part]
    return annotation


def _default(info: FieldInfo) -> Any:
    return MISSING if info.is_required() else info.get_default(call_default_factory=True, validated_data={})


def _plain_default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING if field.default is dataclasses.MISSING else field.default


@cache
def _cached(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return TypeAdapter(annotation)
    try:
        return _cached(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
