"""`headwater run --show`: the whole configuration of a run as TOML, with where each value comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.config import catalog
from headwater.config.load import layers, nested, pairs

if TYPE_CHECKING:
    from headwater.config import Config

FILLED = "chosen to suit the data and the method"
_KEY = re.compile(r"(\w+) = ")


def annotated(config: Config, source: str | None, sets: Sequence[str], options: Mapping[str, Any]) -> str:
    """TOML text with a comment for every value that is not the default of its key.

    Args:
        config: the resolved configuration.
        source: the preset, method or file that was given.
        sets: the pairs of `--set`.
        options: keys that were given as options of their own, with `__` between section and key.
    """
    origin: dict[str, str] = {}
    for name, tree in layers(source):
        origin |= dict.fromkeys(_keys(tree), f"from {name}")
    origin |= dict.fromkeys(_keys(pairs(sets)), "from --set")
    origin |= dict.fromkeys(_keys(nested(options)), "from an option")
    lines, section = [], ""
    defaults = {f"{name}.{key}": setting.default for name in catalog.ORDER for key, setting in _declared(config, name)}
    defaults |= {key: setting.default for key, setting in catalog.TOP.items()}
    tree = config.tree()
    for line in config.to_toml().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        found = _KEY.match(line)
        key = f"{section}.{found.group(1)}" if found and section else found.group(1) if found else ""
        value = tree.get(section, {}).get(found.group(1)) if found and section else None
        filled = section in catalog.SELECTORS or section in catalog.STAGES
        source = origin.get(key) or (FILLED if found and filled and _differs(value, defaults.get(key)) else "")
        lines.append(f"{line}  # {source}" if source and not line.endswith("[") else line)
    return "\n".join(lines)


def _declared(config: Config, section: str) -> list[tuple[str, Any]]:
    """The keys of a section with the choices of this configuration; stages have no defaults of their own."""
    if section in catalog.STAGES:
        return []
    own = catalog.own(section, catalog.chosen(config.tree(), section)) if section in catalog.SELECTORS else {}
    return [*catalog.common(section).items(), *(own or {}).items()]


def _differs(value: Any, default: Any) -> bool:
    alike = list(default) if isinstance(default, tuple) else default
    return (list(value) if isinstance(value, tuple) else value) != alike


def _keys(tree: Mapping[str, Any]) -> list[str]:
    return [
        name
        for key, value in tree.items()
        for name in ([f"{key}.{inner}" for inner in value] if isinstance(value, Mapping) else [key])
    ]
