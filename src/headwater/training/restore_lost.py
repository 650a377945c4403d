"""What becomes of a state when part of the new one was lost."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from headwater.core.federation import CLIENTS, Federation, Located
from headwater.engines.base import rebuilt


def restore_lost(fed: Federation, old: Any, new: Any) -> Any:
    """A new state in which what was lost at the server or at a sector is as it was, by node."""
    if isinstance(new, Located) and isinstance(old, Located):
        if new.place is not old.place or new.place is CLIENTS:
            return new
        before = Located(old.place, {node: ref for node, ref in old.nodes.items() if node in new.nodes})
        return fed.update(before, new)
    if is_dataclass(new) and not isinstance(new, type) and type(new) is type(old):
        parts = {f.name: (getattr(old, f.name), getattr(new, f.name)) for f in fields(new)}
        found = {name: restore_lost(fed, *both) for name, both in parts.items()}
        return rebuilt(new, {name: item for name, item in found.items() if item is not parts[name][1]})
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: restore_lost(fed, old[key], item) if key in old else item for key, item in new.items()}
    if isinstance(new, tuple) and isinstance(old, tuple):
        return tuple(restore_lost(fed, a, b) for a, b in zip(old, new, strict=False)) + new[len(old) :]
    return new
