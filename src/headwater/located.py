"""Handles to values at places, and the rule that a task may only use what is at its home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import torch

from headwater.data.base import Examples
from headwater.engines.base import Bundle, Perhaps, Ref, rebuilt
from headwater.errors import PlaceError
from headwater.params import Params
from headwater.topology.tree import CLIENTS, SECTORS, Place


@dataclass(frozen=True)
class Located:
    """A value a node, at one place; it may cover fewer nodes than the place has. `x[k]` is a part of each."""

    place: Place
    nodes: Mapping[str, Ref | Bundle] = field(default_factory=dict)

    def __getitem__(self, key: Any) -> Located:
        return Located(self.place, {node: ref[key] for node, ref in self.nodes.items()})

    def __iter__(self) -> Any:
        raise TypeError(
            "a handle cannot be looped over: the values are elsewhere; move and read them, or name a part x[k]"
        )

    def one(self, node: str, verb: str) -> Ref:
        """The single value at a node, for a move."""
        held = self.nodes[node]
        if isinstance(held, Bundle):
            raise PlaceError(
                f"{verb}() cannot move the mapping that {node!r} received; "
                "combine it there with run() and move the result"
            )
        return held

    def at(self, node: str, home: str, verb: str, leader: str | None) -> Ref:
        ref = self.one(node, verb)
        if ref.home != home:
            raise PlaceError(
                f"{verb}() of a value at {node!r}: it lives at {ref.home!r}, but {node!r} is now {home!r}"
                + (f" (led by {leader!r})" if leader else "")
                + "; pass it on with hand() first"
            )
        return ref


@dataclass(frozen=True)
class Maybe:
    """As an input: None where a node holds nothing, or what it held was lost."""

    value: Located


@dataclass(frozen=True)
class Each:
    """As an input: a plain value that differs by node."""

    values: Mapping[str, Any]


def nothing(place: Place) -> Located:
    """A value that nobody holds yet."""
    return Located(place)


def maybe(x: Located) -> Maybe:
    return Maybe(x)


def each(values: Mapping[str, Any]) -> Each:
    return Each(values)


def inputs_for(inputs: Any, task: str, at: Place, node: str, home: str, leader: str | None) -> Any:
    """The inputs of one job: handles become names of what is at this node's home, or an error says what is missing."""

    def find(name: str, x: Located, optional: bool) -> Ref | Bundle | Perhaps | None:
        key = node
        if x.place is not at:
            # A seated sector is its leader, so what that client holds is at hand too.
            if not (at is SECTORS and x.place is CLIENTS and leader is not None):
                verb = "up" if x.place.height < at.height else "down"
                raise PlaceError(
                    f"{task} at {node!r}: input {name!r} is at {x.place.value}, not at {at.value}; "
                    f"move it with {verb}() first"
                )
            key = leader
        held = x.nodes.get(key)
        if held is None:
            if optional:
                return None
            raise PlaceError(
                f"{task} at {node!r}: input {name!r} has no value at {key!r}; "
                "wrap it in maybe() if that is expected, or run among() the nodes that hold one"
            )
        refs = [held] if isinstance(held, Ref) else list(held.refs.values())
        away = next((ref.home for ref in refs if ref.home != home), None)
        if away is not None:
            where = "its host" if away == node else "a former seat"
            raise PlaceError(
                f"{task} at {node!r}: input {name!r} lives at {away!r}, {where}, while {node!r} is now {home!r}; "
                "pass it on with hand()"
            )
        return Perhaps(held) if optional else held

    def walk(name: str, value: Any) -> Any:
        if isinstance(value, Located):
            return find(name, value, optional=False)
        if isinstance(value, Maybe):
            return find(name, value.value, optional=True)
        if isinstance(value, Each):
            if node not in value.values:
                raise PlaceError(
                    f"{task} at {node!r}: each() of input {name!r} has no value for it; give one to every node"
                )
            return walk(name, value.values[node])
        if isinstance(value, Params | Examples | torch.Tensor | np.ndarray):
            raise PlaceError(
                f"{task}: input {name!r} is a plain {type(value).__name__}; arrays travel by up() and down() only, "
                "so that they are counted — compute it with run() where it is needed, or move it"
            )
        if isinstance(value, dict):
            return {key: walk(f"{name}[{key!r}]", item) for key, item in value.items()}
        if is_dataclass(value) and not isinstance(value, type):  # a spec, or a loss term with values of its own
            parts = {part.name: getattr(value, part.name) for part in fields(value)}
            found = {part: walk(f"{name}.{part}", item) for part, item in parts.items()}
            changed = {part: item for part, item in found.items() if item is not parts[part] and item != parts[part]}
            return rebuilt(value, changed)
        if isinstance(value, tuple | list):
            return tuple(walk(f"{name}[{i}]", item) for i, item in enumerate(value))
        return value

    return {name: walk(name, value) for name, value in inputs.items()}


def located_in(state: Any) -> list[Located]:
    """All handles in a state: fields of dataclasses, items of tuples and dicts."""
    if isinstance(state, Located):
        return [state]
    if is_dataclass(state) and not isinstance(state, type):
        return [x for f in fields(state) for x in located_in(getattr(state, f.name))]
    if isinstance(state, Mapping):
        return [x for item in state.values() for x in located_in(item)]
    if isinstance(state, tuple | list):
        return [x for item in state for x in located_in(item)]
    return []


def names_in(state: Any) -> set[str]:
    """The names that a state holds. A value at a seat cannot be kept: the seat ends with the round."""
    names: set[str] = set()
    for x in located_in(state):
        for node, held in x.nodes.items():
            for ref in [held] if isinstance(held, Ref) else held.refs.values():
                if x.place is SECTORS and ref.home != node:
                    raise PlaceError(
                        f"the state keeps a value of {node!r} at {ref.home!r}, a seat that ends with the round; "
                        "give it back to the host with unseat().hand() before the round ends"
                    )
                names.add(ref.name)
    return names
