"""Plain values and dataclasses as JSON: states in checkpoints, jobs between parties. Reading executes no code.

`leaf` encodes and `back` decodes other objects, such as handles; both return UNKNOWN for what is not theirs.
"""

from __future__ import annotations

import importlib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

UNKNOWN = object()
TOO_DEEP = "its lists and tables are nested too deeply"
DEEPEST = 100  # levels of lists and tables in a file; what reads it goes through them one inside the other
Leaf = Callable[[Any], Any]


def encode(thing: Any, leaf: Leaf) -> Any:
    encoded = leaf(thing)
    if encoded is not UNKNOWN:
        return encoded
    if is_dataclass(thing) and not isinstance(thing, type):
        named = {f.name: encode(getattr(thing, f.name), leaf) for f in fields(thing)}
        return {"$": "record", "class": address(type(thing)), "fields": named}
    if isinstance(thing, Mapping):
        return {"$": "dict", "items": [[encode(key, leaf), encode(item, leaf)] for key, item in thing.items()]}
    if isinstance(thing, tuple | list):
        return {"$": "tuple", "items": [encode(item, leaf) for item in thing]}
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    raise TypeError(f"a {type(thing).__name__} cannot be written down")


def decode(row: Any, back: Leaf, trusted: Callable[[str], bool] = lambda module: True) -> Any:
    """Decode what `encode` returned.

    Args:
        row: decoded JSON.
        back: decodes objects that `leaf` encoded.
        trusted: tells for a module name whether its dataclasses may be created.
    """
    if not isinstance(row, dict):
        return row
    decoded = back(row)
    if decoded is not UNKNOWN:
        return decoded
    if row["$"] == "record":
        kind = find(row["class"], trusted)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise ValueError(f"{row['class']} is no record")
        record = object.__new__(kind)
        for name in (f.name for f in fields(kind)):
            object.__setattr__(record, name, decode(row["fields"][name], back, trusted))
        return record
    if row["$"] == "dict":
        return {decode(key, back, trusted): decode(item, back, trusted) for key, item in row["items"]}
    if row["$"] == "tuple":
        return tuple(decode(item, back, trusted) for item in row["items"])
    raise ValueError(f"{row['$']!r} is nothing known")


def address(thing: Any) -> str:
    """Import path of a class or function: "package.module:name"."""
    return f"{thing.__module__}:{thing.__qualname__}"


def find(where: str, trusted: Callable[[str], bool] = lambda module: True) -> Any:
    module, _, name = where.partition(":")
    if not trusted(module):
        raise ValueError(f"{where} is not part of this federation")
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    if not trusted(getattr(target, "__module__", module)):  # a module has what it imports, too
        raise ValueError(f"{where} is not part of this federation")
    return target


def trust(*named: str) -> Callable[[str], bool]:
    """A predicate on modules: this library and the packages of each `package.module:name` among `named`."""
    packages = {"headwater", *(name.partition(":")[0].partition(".")[0] for name in named if ":" in name)}
    return lambda module: module.partition(".")[0] in packages


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON with null in place of numbers that are not finite."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False, default=str)
    except ValueError:  # there is one, which is rare
        return json.dumps(finite(value), indent=indent, allow_nan=False, default=str)


def parse_json(text: str | bytes) -> Any:
    """The content of a JSON text that may be anybody's.

    Raises:
        ValueError: it is not valid JSON, or nested too deeply.
    """
    return _bounded(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """The content of a TOML text that may be anybody's.

    Raises:
        ValueError: it is not valid TOML, or nested too deeply.
    """
    tables: dict[str, Any] = _bounded(tomllib.loads, text)
    return tables


def _bounded(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        tree = parse(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's own limit, in words about Python
            raise ValueError("a number in it has thousands of digits") from None
        raise
    level = [tree]
    for _ in range(DEEPEST):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return tree
    raise ValueError(TOO_DEEP)
