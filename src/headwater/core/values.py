"""Handles to values at nodes, and the rule that a task may only use values at its own home."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from headwater.core.params import Params
from headwater.core.tree import CLIENTS, SECTORS, Place
from headwater.data.base import Examples
from headwater.engines.jobs import field_names, rebuilt
from headwater.engines.refs import Bundle, Perhaps, Ref, RefGroup, Refs, apart, grouped, parts_of
from headwater.errors import PlaceError


@dataclass(frozen=True)
class Located:
    """Handle to one value per node of a tier, possibly only some of its nodes.

    `x[k]` is a handle to part `k` of each value.

    Args:
        place: the tier: `CLIENTS`, `SECTORS` or `SERVER`.
        nodes: node → reference of its value; after `up`, a `Bundle` with one reference per child.
    """

    place: Place
    nodes: Mapping[str, Ref | Bundle] = field(default_factory=dict)

    def __getitem__(self, key: Any) -> Located:
        return Located(self.place, parts_of(self.nodes, key))

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all values. Refuses a value at a leader: its seat ends with the round."""
        for node, held in self.nodes.items() if self.place is SECTORS else ():
            for ref in [held] if isinstance(held, Ref) else held.refs.values():
                if ref.home != node:
                    raise PlaceError(
                        f"the state keeps a value of {node!r} at {ref.home!r}, a seat that ends with the round; "
                        "give it back to the host with unseat().hand() before the round ends"
                    )
        return frozenset(leaf.name for leaf in self._leaves())

    @cached_property
    def members(self) -> dict[str, set[str]]:
        """Names of all values; for a group, the members that this handle refers to."""
        found: dict[str, set[str]] = {name: set() for name in self.names}
        for leaf in self._leaves():
            if isinstance(leaf, RefGroup):
                found[leaf.name].update(leaf.nodes if leaf.grouped else ())
            elif leaf.member:
                found[leaf.name].add(leaf.member)
        return found

    def refs(self) -> Iterator[Ref]:
        """All references, those inside mappings too."""
        return apart(self._leaves())

    def _leaves(self) -> Iterator[Ref | RefGroup]:
        """All references, those inside mappings too; those that come in groups as groups."""
        for held in self.nodes.groups if isinstance(self.nodes, Refs) else self.nodes.values():
            if isinstance(held, Bundle):
                yield from grouped(held.refs)
            else:
                yield held

    def __iter__(self) -> Any:
        raise TypeError(
            "a handle cannot be looped over: the values are elsewhere; move and read them, or name a part x[k]"
        )

    def one(self, node: str, verb: str) -> Ref:
        """The reference of the single value at a node, which `verb` is about to move."""
        held = self.nodes[node]
        if isinstance(held, Bundle):
            raise PlaceError(
                f"{verb}() cannot move the mapping that {node!r} received; "
                "combine it there with run() and move the result"
            )
        return held

    def at(self, node: str, home: str, verb: str, leader: str | None) -> Ref:
        """As `one`, and refuse a value that is not at the node's present home."""
        ref = self.one(node, verb)
        if ref.home != home:
            raise PlaceError(
                f"{verb}() of a value at {node!r}: it is stored at {ref.home!r}, but {node!r} is now {home!r}"
                + (f" (led by {leader!r})" if leader else "")
                + "; pass it on with hand() first"
            )
        return ref


@dataclass(frozen=True)
class Maybe:
    """Input that is None where a node has no value or its value was lost."""

    value: Located


@dataclass(frozen=True)
class Each:
    """Plain input that differs by node."""

    values: Mapping[str, Any]


def nothing(place: Place) -> Located:
    """A handle without any value yet, for the first state of a method."""
    return Located(place)


def maybe(x: Located) -> Maybe:
    """Mark an input of `run` as optional: the task gets None where a node has no value or it was lost."""
    return Maybe(x)


def each(values: Mapping[str, Any]) -> Each:
    """Give each node a plain input of its own, by node name."""
    return Each(values)


def split_inputs(inputs: Mapping[str, Any], task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split inputs into those that are the same at every node and those that differ or contain a handle."""
    same: dict[str, Any] = {}
    by_node: dict[str, Any] = {}
    for name, value in inputs.items():
        if _varies(value):
            by_node[name] = value
        else:
            same[name] = _filled(name, value, task, _never)
    return same, by_node


def _varies(value: Any) -> bool:
    if isinstance(value, Located | Maybe | Each):
        return True
    if isinstance(value, dict):
        return any(map(_varies, value.values()))
    if isinstance(value, tuple | list):
        return any(map(_varies, value))
    return any(_varies(getattr(value, part)) for part in field_names(type(value)))


def inputs_for(inputs: Any, task: str, at: Place, node: str, home: str, leader: str | None) -> Any:
    """Inputs of one job: each handle becomes the reference of the value at this node's home.

    Raises:
        PlaceError: if a value is missing or stored elsewhere.
    """

    def find(name: str, x: Located, optional: bool) -> Ref | Bundle | Perhaps | None:
        key = node
        if x.place is not at:
            # The home of a sector with a leader is that client, so the client's values are there too.
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
        refs = (held,) if isinstance(held, Ref) else grouped(held.refs)
        away = next((ref.home for ref in refs if ref.home != home), None)
        if away is not None:
            where = "its host" if away == node else "a former seat"
            raise PlaceError(
                f"{task} at {node!r}: input {name!r} is stored at {away!r}, {where}, while {node!r} is now {home!r}; "
                "pass it on with hand()"
            )
        return Perhaps(held) if optional else held

    def fill(name: str, value: Any) -> Any:
        if isinstance(value, Located):
            return find(name, value, optional=False)
        if isinstance(value, Maybe):
            return find(name, value.value, optional=True)
        if node not in value.values:
            raise PlaceError(
                f"{task} at {node!r}: each() of input {name!r} has no value for it; give one to every node"
            )
        return _filled(name, value.values[node], task, fill)

    found: dict[str, Any] = {}
    for name, value in inputs.items():
        held = value.nodes.get(node) if type(value) is Located and value.place is at else None
        # Fast path: most inputs are one value at this home. Others are searched, or refused with a sentence.
        at_hand = type(held) is Ref and held.home == home
        found[name] = held if at_hand else _filled(name, value, task, fill)
    return found


def _filled(name: str, value: Any, task: str, fill: Callable[[str, Any], Any]) -> Any:
    """An input with each handle in it replaced by `fill(name, handle)`. Arrays are refused."""
    if isinstance(value, Located | Maybe | Each):
        return fill(name, value)
    if isinstance(value, Params | Examples | torch.Tensor | np.ndarray):
        raise PlaceError(
            f"{task}: input {name!r} is a plain {type(value).__name__}; arrays travel by up() and down() only, "
            "so that they are counted — compute it with run() where it is needed, or move it"
        )
    if isinstance(value, dict):
        return {key: _filled(f"{name}[{key!r}]", item, task, fill) for key, item in value.items()}
    if names := field_names(type(value)):  # a spec, or a loss term that contains handles
        parts = {part: getattr(value, part) for part in names}
        found = {part: _filled(f"{name}.{part}", item, task, fill) for part, item in parts.items()}
        changed = {part: item for part, item in found.items() if item is not parts[part] and item != parts[part]}
        return rebuilt(value, changed)
    if isinstance(value, tuple | list):
        return tuple(_filled(f"{name}[{i}]", item, task, fill) for i, item in enumerate(value))
    return value


def _never(name: str, value: Any) -> Any:
    raise AssertionError(f"{name} was taken for a plain value")


def located_in(state: Any) -> list[Located]:
    """All handles in a state: in fields of dataclasses and items of tuples and dicts."""
    if isinstance(state, Located):
        return [state]
    if isinstance(state, tuple | list):
        return [x for item in state for x in located_in(item)]
    if names := field_names(type(state)):
        return [x for name in names for x in located_in(getattr(state, name))]
    if isinstance(state, Mapping):
        return [x for item in state.values() for x in located_in(item)]
    return []


def names_in(state: Any) -> dict[str, set[str]]:
    """Names of the values that a state refers to; for a group, the members it refers to."""
    found: dict[str, set[str]] = {}
    for x in located_in(state):
        for name, members in x.members.items():
            found[name] = found[name] | members if name in found else members
    return found
