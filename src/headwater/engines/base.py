"""What every engine agrees on: names of values, jobs, and how one job is carried out.

An engine keeps named, immutable values at homes. It knows tasks and homes; it does not know sectors, methods or the
ledger.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headwater.core.rng import Key
from headwater.core.serialization import Info, part_of
from headwater.tasks.task import RunContext

EVERY = "*"  # all members of a group


@dataclass(slots=True, unsafe_hash=True)
class Ref:
    """The name of one value at one home, or of a part of it. Never changed: it is not frozen only because hundreds are
    made in a round, and a frozen one takes longer to make.

    Jobs that are carried out as one give one value under one name: {node: result}. `member` is then the node whose
    result is meant, or `EVERY` for all of them. A value that was broadcast has one name at all homes that received it.
    """

    name: str
    home: str
    part: tuple[Any, ...] = ()
    member: str = ""

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self.name, self.home, (*self.part, key), self.member)

    @property
    def key(self) -> str:
        """A name for this value alone, also where it is one of a group."""
        return f"{self.name}/{self.member}" if self.member else self.name

    def under(self, other: Ref) -> Ref:
        """The same value by way of `other`, which this ref's name is only another name for."""
        own = self.member and other.member in ("", EVERY)
        return Ref(other.name, other.home, other.part + self.part, self.member if own else other.member)


@dataclass(frozen=True)
class Bundle:
    """What a parent holds after `up`: the values of its children, in tree order."""

    refs: Mapping[str, Ref]

    def __getitem__(self, key: Any) -> Bundle:
        return Bundle({child: ref[key] for child, ref in self.refs.items()})


@dataclass(frozen=True)
class Perhaps:
    """An input that is None where its value was lost, as it is where there never was one."""

    held: Ref | Bundle


class Lost:
    """Stands for a value that was not produced."""

    def __repr__(self) -> str:
        return "LOST"


LOST = Lost()
PLAIN = (str, int, float, type(None))
SEVERAL = (tuple, list)  # by name: to make the union of two types takes longer than to look for it


class LostInput(Exception):  # noqa: N818 (a signal, not an error)
    """A task needs a value that was lost."""


@dataclass(eq=False)
class Job:
    """One task at one home. `inputs` is a tree of plain values with Refs and Bundles in it. Never changed, as a Ref.

    Jobs that are carried out as one have the same name, under which their results are {node: result}.
    """

    name: str
    task: Callable[..., Any]
    node: str
    home: str
    inputs: Mapping[str, Any]
    key: tuple[Key, ...]  # names the random stream: round, task, nth call of it in the round, node
    lost: bool = False  # drawn to be lost: it is not carried out
    size: int = 0  # samples at the home: what takes longest is begun first
    plain: frozenset[str] = frozenset()  # inputs that are known to name no value, and need not be looked through

    @property
    def title(self) -> str:
        return str(getattr(self.task, "__name__", self.task))

    @property
    def phase(self) -> str:
        return str(getattr(self.task, "phase", "task"))

    @property
    def round(self) -> int:
        return self.key[0] if self.key and isinstance(self.key[0], int) else 0

    def refs(self) -> tuple[Ref, ...]:
        """All names of values among the inputs, in order; they are asked for several times and looked for once."""
        known: tuple[Ref, ...] | None = self.__dict__.get("_refs")
        if known is None:
            found: list[Ref] = []
            for name, item in self.inputs.items():
                if name not in self.plain:
                    _look(item, found)
            known = self.__dict__["_refs"] = tuple(found)
        return known


class Done(NamedTuple):
    """The report of one finished job, or of several that were carried out as one, for progress, notes and the time
    line."""

    name: str
    title: str
    phase: str
    notes: Mapping[str, Mapping[str, float]]  # by node
    round: int
    start: float
    end: float
    worker: int = 0

    @property
    def node(self) -> str:
        """The first node, of one or several."""
        return next(iter(self.notes))


Files = Mapping[str, str | Mapping[str, str]]  # by name; of a group by node
Infos = Info | None | Mapping[str, Info | None]  # of one value, or by node of several that have one name


class Engine(Protocol):
    """Named values at homes. Nothing waits except `info`, `read`, `finish`, `save` and `close`."""

    done: list[Done]  # finished jobs, in order of completion; the training loop takes them out
    watch: Callable[[Done], None] | None

    def start(self, context: RunContext) -> None:
        """Take up a run: forget every value of the run before."""

    def submit(self, *jobs: Job) -> None:
        """A job, or several of one task that have one name and are carried out as one."""

    def move(self, ref: Ref, home: str, name: str, tiers: tuple[str, ...] = ()) -> None:
        """The value under a new name at another home; `tiers`: the edges that this is charged on.

        A group is moved as one, and its new name is that of a group. A value that goes to several homes is moved once:
        its new name is then known at all of them (except on an engine whose homes are parties of their own).
        """

    def either(self, new: Ref, old: Ref, name: str) -> None:
        """Another name for the new value or, where that was lost, for the old one at the same home. Nobody works."""

    def info(self, ref: Ref) -> Info | None:
        """Size and kind; None for a lost value."""

    def read(self, ref: Ref) -> Any: ...

    def drop(self, names: Iterable[str]) -> None:
        """These names will not be used by what is submitted later; what was submitted already still gets them."""

    def trim(self, members: Mapping[str, Collection[str]]) -> None:
        """Of these groups, only these members will be used later; the others need not be kept."""

    def finish(self, names: Iterable[str]) -> dict[str, Infos]:
        """See that these are done, and no more than they need: their reports are then complete.

        Tells size and kind of each, once, also of those that were dropped meanwhile.
        """

    def save(self, names: Iterable[str], directory: Path) -> Files:
        """Write values as files named by their content; gives name → file name ("" for a lost value), for a group
        {node: file name}."""

    def load(self, files: Files, directory: Path) -> None:
        """Take up values written by `save` under these names."""

    def close(self) -> None:
        """Let go of everything; safe to call twice."""


def field_names(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of record; none of anything else."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(part.name for part in fields(kind)) if is_dataclass(kind) else ()
    return _FIELDS[kind]


_FIELDS: dict[Any, tuple[str, ...]] = {}  # asked for at every job


def refs_in(inputs: Any) -> list[Ref]:
    found: list[Ref] = []
    _look(inputs, found)
    return found


def _look(thing: Any, found: list[Ref]) -> None:
    if isinstance(thing, Ref):
        found.append(thing)
    elif isinstance(thing, Bundle):
        found.extend(thing.refs.values())
    elif isinstance(thing, SEVERAL):
        for item in thing:
            _look(item, found)
    elif names := field_names(type(thing)):
        for name in names:
            _look(getattr(thing, name), found)
    elif not isinstance(thing, PLAIN) and isinstance(thing, Mapping):
        for item in thing.values():
            _look(item, found)


def rebuilt(record: Any, changed: Mapping[str, Any]) -> Any:
    """A frozen record with some fields replaced, as they are: a name in place of a value is no field of its type."""
    if not changed:
        return record
    copied = copy.copy(record)
    for name, item in changed.items():
        object.__setattr__(copied, name, item)
    return copied


@dataclass
class Stream:
    """A mapping that is read once and in order; each value is let go after use. Lost values are left out."""

    refs: Mapping[str, Ref]
    fetch: Callable[[Ref], Any]
    release: Callable[[Ref], None]
    _given: int = field(default=0)

    def items(self) -> Iterator[tuple[str, Any]]:
        for child, ref in self.refs.items():
            value = self.fetch(ref)
            if value is not LOST:
                self._given += 1
                yield child, value
            del value
            self.release(ref)
        if not self._given:
            raise LostInput

    def values(self) -> Iterator[Any]:
        for _, value in self.items():
            yield value


def resolve(inputs: Any, fetch: Callable[[Ref], Any]) -> Any:
    """Inputs with values in place of names. A lost child is left out; a lost value or no child at all loses all."""
    if isinstance(inputs, Ref):
        value = fetch(inputs)
        if value is LOST:
            raise LostInput
        return value
    if isinstance(inputs, Perhaps):
        try:
            return resolve(inputs.held, fetch)
        except LostInput:
            return None
    if isinstance(inputs, Bundle):
        found = {child: value for child, ref in inputs.refs.items() if (value := fetch(ref)) is not LOST}
        if not found:
            raise LostInput
        return found
    if isinstance(inputs, dict):
        return {key: resolve(item, fetch) for key, item in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(resolve(item, fetch) for item in inputs)
    if (names := field_names(type(inputs))) and refs_in(inputs):
        return rebuilt(inputs, {name: resolve(getattr(inputs, name), fetch) for name in names})
    return inputs


def pick(value: Any, ref: Ref) -> Any:
    """What a ref names of a value: a member of a group (those that were lost are not in it), a part, or all of it."""
    if ref.member == EVERY:
        return {node: part_of(held, ref.part) for node, held in value.items()}
    if ref.member and value is not LOST:
        value = value.get(ref.member, LOST)
    return value if value is LOST or not ref.part else part_of(value, ref.part)
