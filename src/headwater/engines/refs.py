"""References to values: of one node, of several nodes under one name, and of a parent's children.

A round with many small clients would otherwise spend its time on creating the refs of single clients. A broadcast
value, or the results of a group of jobs, is one `RefGroup`; the `Ref` of one node is created if somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cached_property
from typing import Any

EVERY = "*"  # all members of a group


@dataclass(slots=True, unsafe_hash=True)
class Ref:
    """Name of one value at one home, or of a part of it.

    Treat it as immutable. It is not frozen because a round creates hundreds of refs, and frozen ones are slower to
    create.

    Args:
        name: name of the value. A value that was broadcast has one name at all homes that received it.
        home: node that holds the value.
        part: keys and indices that lead to the part, outermost first; empty for the whole value.
        member: jobs that are executed as one group produce one value, {node: result}. `member` is the node whose result
            is meant, or `EVERY` for all of them. Empty for a value that is not a group.
    """

    name: str
    home: str
    part: tuple[Any, ...] = ()
    member: str = ""

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self.name, self.home, (*self.part, key), self.member)

    @property
    def key(self) -> str:
        """Unique name of this value, also where it is a member of a group."""
        return f"{self.name}/{self.member}" if self.member else self.name

    def under(self, other: Ref) -> Ref:
        """Return the ref to the same value by way of `other`, which `self.name` is an alias of."""
        own = self.member and other.member in ("", EVERY)
        return Ref(other.name, other.home, other.part + self.part, self.member if own else other.member)


@dataclass(frozen=True)
class RefGroup:
    """Refs of several nodes that have one name.

    Args:
        name: name of the value.
        nodes: the nodes, in tree order.
        home: node that holds the value; empty if every node holds its own.
        part: as in `Ref`.
        grouped: whether the value is that of a group of jobs, and each node's ref names its member. Otherwise all nodes
            have the same value.
    """

    name: str
    nodes: tuple[str, ...]
    home: str = ""
    part: tuple[Any, ...] = ()
    grouped: bool = False

    def ref(self, node: str) -> Ref:
        return Ref(self.name, self.home or node, self.part, node if self.grouped else "")

    @property
    def whole(self) -> Ref:
        """The value of all nodes: {node: result} of a group of jobs, or the one value that all of them have."""
        return Ref(self.name, self.home or self.nodes[0], self.part, EVERY if self.grouped else "")

    def __getitem__(self, key: Any) -> RefGroup:
        return RefGroup(self.name, self.nodes, self.home, (*self.part, key), self.grouped)


class Refs(Mapping[str, Ref]):
    """Node → ref, for nodes whose refs come in groups. In another process it is a plain dict.

    Args:
        groups: groups with different names, in tree order.
    """

    def __init__(self, groups: Iterable[RefGroup]) -> None:
        self.groups = tuple(groups)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        if len(self.groups) == 1:
            return self.groups[0].nodes
        return tuple(node for group in self.groups for node in group.nodes)

    @cached_property
    def _refs(self) -> dict[str, Ref]:
        return {node: group.ref(node) for group in self.groups for node in group.nodes}

    def part(self, key: Any) -> Refs:
        """Refs of a part of every value."""
        return Refs(group[key] for group in self.groups)

    def __getitem__(self, node: str) -> Ref:
        return self._refs[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def items(self) -> ItemsView[str, Ref]:
        return self._refs.items()

    def values(self) -> ValuesView[Ref]:
        return self._refs.values()

    def __repr__(self) -> str:
        return repr(self._refs)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._refs,)


@dataclass(frozen=True)
class Bundle:
    """Values of a parent's children after `up`, in tree order.

    Args:
        refs: child → its value, which is at the parent's home now.
    """

    refs: Mapping[str, Ref]

    def __getitem__(self, key: Any) -> Bundle:
        return Bundle(parts_of(self.refs, key))


@dataclass(frozen=True)
class Hidden(Bundle):
    """Values that are still at the parent's children, and that only enter a sum.

    Args:
        view: the view of the federation that `up` was called on.
    """

    view: Any = None

    def __getitem__(self, key: Any) -> Hidden:
        return Hidden(parts_of(self.refs, key), self.view)


@dataclass(frozen=True)
class Perhaps:
    """Optional input: the task gets None if its value was lost."""

    held: Ref | Bundle


def parts_of(refs: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
    """References of a part of every value."""
    return refs.part(key) if isinstance(refs, Refs) else {node: held[key] for node, held in refs.items()}


def grouped(refs: Mapping[str, Ref]) -> Sequence[Ref | RefGroup]:
    """All refs of a mapping, in order; those that come in groups as groups."""
    return refs.groups if isinstance(refs, Refs) else tuple(refs.values())


def apart(leaves: Iterable[Ref | RefGroup]) -> Iterator[Ref]:
    """Single refs in place of groups."""
    for leaf in leaves:
        if isinstance(leaf, Ref):
            yield leaf
        else:
            yield from map(leaf.ref, leaf.nodes)


def fetched(refs: Mapping[str, Ref], fetch: Callable[[Ref], Any]) -> Iterator[tuple[Ref | RefGroup, Mapping[str, Any]]]:
    """Fetch the values of refs, one after the other or, where they come in groups, one group after the other.

    Yields:
        The ref or group, and node → value. Members of a group that were lost are left out.
    """
    if isinstance(refs, Refs):
        for group in refs.groups:
            yield group, fetch(group.whole) if group.grouped else dict.fromkeys(group.nodes, fetch(group.whole))
    else:
        for node, ref in refs.items():
            yield ref, {node: fetch(ref)}
