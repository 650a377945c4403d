"""Writes a configuration as TOML text, and compares two configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headwater.config import catalog
from headwater.config.fields import NONE, plain
from headwater.config.sections import DeployConfig

HEADER = "# Written by Headwater: the whole configuration of a run. `headwater run` on this file repeats it.\n\n"
# Keys that say where and when a run is computed. They never change a result.
ELSEWHERE = (
    "data.dir",
    "engine.name",
    "engine.workers",
    "engine.memory",
    "engine.address",
    "engine.overlap",
    "faults.availability",
    "faults.period",
    *(f"deploy.{key}" for key in DeployConfig.model_fields),
)


def to_toml(tree: Mapping[str, Any]) -> str:
    """Return TOML text: top-level keys, then the sections in the order of the documentation, without empty ones."""
    import tomli_w

    sections = {section: tree[section] for section in catalog.ORDER if tree.get(section)}
    top = {key: tree[key] for key in catalog.TOP if key in tree}
    return HEADER + tomli_w.dumps(_without_null(plain({**top, **sections})))


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted key and both values of each difference that can change a result."""
    left, right = _flat(mine), _flat(theirs)
    for key in [*left, *(key for key in right if key not in left)]:
        if key not in ELSEWHERE and left.get(key) != right.get(key):
            yield key, left.get(key), right.get(key)


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in plain(tree).items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return found


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items()}
    return NONE if value is None else value
