"""JSON that every reader accepts: a number that is not finite becomes null."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(finite(value), indent=indent, allow_nan=False, default=str)
