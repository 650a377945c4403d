"""The configuration as a JSON schema, with which editors complete and check the TOML files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from headwater.config import catalog, reference
from headwater.config.fields import MISSING, NONE, Setting, plain, settings_of
from headwater.config.reference import KeyRow, SectionKeys
from headwater.registry import load

DRAFT = "https://json-schema.org/draft/2020-12/schema"
OWN = ":"  # is in the name of the user's own methods, models and so on: package.module:Name
PATHS = r"[/\\.]"  # in the name of data that is a path

Schema = dict[str, Any]


def schema() -> Schema:
    """The schema of a configuration file.

    A file may hold only differences from the one that it extends. So no key is required, and where a section does not
    name its data set, partition scheme, model or method, the keys of all of them are accepted.
    """
    top = reference.section("")
    extends = {"type": "string", "description": "a preset (`headwater list presets`), a method or another file."}
    return {
        "$schema": DRAFT,
        "title": "Headwater configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "extends": extends,
            **_properties(catalog.TOP, top.keys),
            **{name: _section(reference.section(name)) for name in catalog.ORDER},
        },
    }


def _section(keys: SectionKeys) -> Schema:
    own = _properties(catalog.common(keys.name), keys.keys)
    table: Schema = {"type": "object", "description": keys.about, "properties": own}
    if not keys.selector:
        return table | {"additionalProperties": False}
    parts = dict(_parts(keys.name))
    own |= _joined({key: {c: p[key] for c, p in parts.items() if key in p} for p in parts.values() for key in p})
    listed = {"enum": [*catalog.REGISTRIES[keys.name], *((catalog.AUTO,) if keys.name == "model" else ())]}
    pattern = f"{OWN}|{PATHS}" if keys.name == "data" else OWN
    about = {key: own[keys.selector][key] for key in ("description", "default") if key in own[keys.selector]}
    own[keys.selector] = {"type": "string", "anyOf": [listed, {"pattern": pattern}], **about}
    accepted = {"propertyNames": {"enum": list(own)}}
    users = {"properties": {keys.selector: {"pattern": OWN}}, "required": [keys.selector]}
    return table | {
        "if": users,
        "else": accepted,  # a part of the user's own has keys that only its code knows
        "allOf": [_only(keys, choice, properties) for choice, properties in parts.items()],
    }


def _parts(name: str) -> Iterator[tuple[str, Schema]]:
    """The keys of each listed part, and of each kind of path."""
    for choice in catalog.REGISTRIES[name]:
        yield choice, _properties(catalog.own(name, choice) or {}, reference.own_keys(name, choice))
    if name == "data":
        for kind, target in reference.PATH_KINDS.items():
            yield kind, _properties(settings_of(load(target)), reference.path_keys(kind))


def _only(keys: SectionKeys, choice: str, properties: Schema) -> Schema:
    """With this choice, its own keys only."""
    if choice not in catalog.REGISTRIES[keys.name]:
        return {}
    names = [*catalog.common(keys.name), *properties]
    chosen = {"properties": {keys.selector: {"const": choice}}, "required": [keys.selector]}
    return {"if": chosen, "then": {"propertyNames": {"enum": names}, "properties": properties}}


def _joined(owners: Mapping[str, Mapping[str, Schema]]) -> Schema:
    """Keys with what any of the parts that have them accepts.

    Args:
        owners: key → part → its schema.
    """
    joined: Schema = {}
    for key, by_part in owners.items():
        alternatives: list[Schema] = []
        for each in by_part.values():
            bare = {name: value for name, value in each.items() if name not in ("description", "default")}
            alternatives += [bare] if bare not in alternatives else []
        whose, first = ", ".join(by_part), next(iter(by_part.values()))["description"]
        accepted = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
        joined[key] = accepted | {"description": f"With {whose}: {first}"}
    return joined


def _properties(settings: Mapping[str, Setting], rows: tuple[KeyRow, ...]) -> Schema:
    about = {row.key: row for row in rows}
    return {key: _property(setting, about[key]) for key, setting in settings.items() if key in about}


def _property(setting: Setting, row: KeyRow) -> Schema:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(setting.annotation, config=ConfigDict(arbitrary_types_allowed=True))
        accepted: Schema = _with_word(adapter.json_schema(mode="validation"))
    except PydanticSchemaGenerationError:
        accepted = {}
    used = f"Default: {row.default}." if row.default else "Required."
    accepted["description"] = " ".join([row.meaning, f"Accepted: {row.accepted}.", used]).strip()
    default = setting.default
    if default is not MISSING and row.default == reference.toml(default):
        accepted["default"] = NONE if default is None else plain(default)
    return accepted


def _with_word(made: Any) -> Any:
    """TOML has no null: the word "none" stands for it."""
    if isinstance(made, dict):
        if made.get("type") == "null":
            return {"const": NONE}
        return {key: _with_word(value) for key, value in made.items() if key != "title"}
    return [_with_word(item) for item in made] if isinstance(made, list) else made
