"""JSON files with signatures in them: read with bounds, and in one form for the signature."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.core.records import parse_json
from headwater.errors import ConfigError

VERSION = 1


def read_fields(file: Path, kind: str, types: Mapping[str, type], most: int, by: str) -> tuple[bytes, dict[str, Any]]:
    """The content of a file and the JSON object in it.

    Args:
        file: the file.
        kind: that the object must be of, in its field `kind`.
        types: of all its fields, by name.
        most: bytes that are read.
        by: what writes such files, named in errors.

    Raises:
        ConfigError: if it is something else.
    """
    if not file.is_file():
        raise ConfigError(f"there is no file {file}; name the one that {by} has written")
    with file.open("rb") as opened:
        content = opened.read(most + 1)
    try:
        fields: Any = parse_json(content) if len(content) <= most else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        size = f" (it is larger than {most >> 10} KiB)" if len(content) > most else ""
        raise ConfigError(f"{file} is not what {by} has written{size}; ask for it again")
    if fields.get("version") != VERSION:
        raise ConfigError(f"{file} was written by another version of Headwater; install the same one at every party")
    if set(fields) != set(types) or any(type(fields[key]) is not types[key] for key in types):
        raise ConfigError(f"{file} is not what {by} has written: it needs {', '.join(types)}; ask for it again")
    return content, fields


def signed_part(fields: Mapping[str, Any]) -> bytes:
    """What is signed: the kind, and all fields but signatures in a form that is the same for the same content."""
    return f"{fields['kind']}\n{json.dumps(fields, sort_keys=True, separators=(',', ':'))}".encode()


def as_text(fields: Mapping[str, Any]) -> bytes:
    """The content of a file."""
    return f"{json.dumps(fields, indent=1)}\n".encode()


def to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def from_base64(text: Any) -> bytes:
    """What base64 stands for; nothing if it is none, which is no signature."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        return b""
