"""Jobs and the named values that they read: what the federation hands to an engine.

A value is named by a `Ref`, several values of one parent by a `Bundle`. A `Job` is one call of a task at one home; its
inputs are plain Python values with refs and bundles in place of the values that other jobs produce.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

from headwater.core.rng import Key
from headwater.core.serialization import part_of
from headwater.engines.refs import EVERY, Bundle, Perhaps, Ref, RefGroup, apart, fetched, grouped
from headwater.errors import TaskError

__all__ = [
    "EVERY",
    "LOST",
    "Bundle",
    "Job",
    "Lost",
    "LostInput",
    "Perhaps",
    "Ref",
    "Stream",
    "field_names",
    "pick",
    "rebuilt",
    "refs_in",
    "resolve",
]


class Lost:
    """Type of `LOST`, which stands for a value that was not produced."""

    def __repr__(self) -> str:
        return "LOST"


LOST = Lost()
PLAIN = (str, int, float, type(None))
SEVERAL = (tuple, list)  # a constant, because building the union of two types is slower than looking it up


class LostInput(Exception):  # noqa: N818 (a signal, not an error)
    """A task needs a value that was lost, so its own result is lost too."""


class Call:
    """What a job and a group of jobs have in common."""

    task: Callable[..., Any]
    key: tuple[Key, ...]

    @property
    def title(self) -> str:
        """Name of the task function."""
        return str(getattr(self.task, "__name__", self.task))

    @property
    def phase(self) -> str:
        """Phase of the task, such as "train" or "distill"."""
        return str(getattr(self.task, "phase", "task"))

    @property
    def round(self) -> int:
        return self.key[0] if self.key and isinstance(self.key[0], int) else 0


@dataclass(eq=False)
class Job(Call):
    """One call of a task at one home. Treat it as immutable.

    Jobs that are executed as one group have the same name, under which their results are {node: result}.

    Args:
        name: name of the result.
        task: the task function; see `headwater.tasks.task.task`.
        node: node that the job belongs to.
        home: node whose data the task sees. It differs from `node` where a client is the leader of its sector.
        inputs: keyword arguments of the task, with refs and bundles at any depth.
        key: names the random stream: round, task, nth call of it in the round, node.
        lost: the fault model has drawn this job to be lost: it is not executed and its result is `LOST`.
        size: number of samples at the home, by which schedulers start the longest job first.
        plain: inputs that are known to contain no ref, which are not searched.
    """

    name: str
    task: Callable[..., Any]
    node: str
    home: str
    inputs: Mapping[str, Any]
    key: tuple[Key, ...]
    lost: bool = False
    size: int = 0
    plain: frozenset[str] = frozenset()

    @cached_property
    def leaves(self) -> tuple[Ref | RefGroup, ...]:
        """All refs among the inputs, in order; those that come in groups as groups."""
        found: list[Ref | RefGroup] = []
        for name, item in self.inputs.items():
            if name not in self.plain:
                _collect(item, found)
        return tuple(found)

    def refs(self) -> tuple[Ref, ...]:
        """Return all refs among the inputs, in order."""
        return tuple(apart(self.leaves))

    @cached_property
    def uses(self) -> Counter[str]:
        """How often the job names each of its inputs."""
        return Counter([leaf.name for leaf in self.leaves])

    @property
    def needs(self) -> Collection[str]:
        """Names of inputs that must exist before the job begins: not those that it streams, none if it is lost."""
        streamed = getattr(self.task, "streaming", ())
        if self.lost or not streamed:
            return () if self.lost else self.uses
        found: list[Ref | RefGroup] = []
        _collect([item for name, item in self.inputs.items() if name not in streamed], found)
        return [leaf.name for leaf in found]


def field_names(kind: Any) -> tuple[str, ...]:
    """Return the field names of a dataclass; empty for any other type."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(part.name for part in fields(kind)) if is_dataclass(kind) else ()
    return _FIELDS[kind]


_FIELDS: dict[Any, tuple[str, ...]] = {}  # cache: every job looks here


def refs_in(inputs: Any) -> list[Ref]:
    """Return all refs at any depth of a value, in order."""
    found: list[Ref | RefGroup] = []
    _collect(inputs, found)
    return list(apart(found))


def _collect(thing: Any, found: list[Ref | RefGroup]) -> None:
    if isinstance(thing, Ref):
        found.append(thing)
    elif isinstance(thing, Bundle):
        found.extend(grouped(thing.refs))
    elif isinstance(thing, SEVERAL):
        for item in thing:
            _collect(item, found)
    elif names := field_names(type(thing)):
        for name in names:
            _collect(getattr(thing, name), found)
    elif not isinstance(thing, PLAIN) and isinstance(thing, Mapping):
        for item in thing.values():
            _collect(item, found)


def rebuilt(record: Any, changed: Mapping[str, Any]) -> Any:
    """Return a copy of a frozen record with some fields replaced.

    No constructor or check of the record runs, since a ref in place of a value is not of the field's type.
    """
    if not changed:
        return record
    copied = copy.copy(record)
    for name, item in changed.items():
        object.__setattr__(copied, name, item)
    return copied


@dataclass
class Stream:
    """Streaming input of a task: a mapping that can be read once, in order, with one value in memory at a time.

    Lost values are left out. Each value is released after use, which is why a second reading is an error.

    Args:
        job: the job whose input this is, for messages.
        name: name of the input.
        fetch: returns the value of a ref.
        release: called with each ref, or group of refs, after its value was used.
        put: brings a value to where the task computes.
    """

    job: Job
    name: str
    fetch: Callable[[Ref], Any]
    release: Callable[[Ref | RefGroup], None]
    put: Callable[[Any], Any] = lambda value: value
    _begun: bool = field(default=False)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield child and value.

        Raises:
            LostInput: all values were lost.
            TaskError: the stream was read before.
        """
        job = self.job
        if self._begun:
            raise TaskError(
                f"{job.title} at {job.node} (home {job.home}) reads its streaming input {self.name!r} twice; "
                "declare it without streaming or copy it to a dict"
            )
        self._begun, any_value = True, False
        for leaf, found in fetched(job.inputs[self.name].refs, self.fetch):
            for child, value in found.items():
                if value is not LOST:
                    any_value = True
                    yield child, self.put(value)
            found, value = {}, None  # the next one may need their memory
            self.release(leaf)
        if not any_value:
            raise LostInput

    def values(self) -> Iterator[Any]:
        """Yield the values alone; see `items`."""
        for _, value in self.items():
            yield value
            del value


def resolve(inputs: Any, fetch: Callable[[Ref], Any]) -> Any:
    """Replace every ref in `inputs` by its value.

    A lost child of a bundle is left out.

    Raises:
        LostInput: a single value, or every child of a bundle, was lost.
    """
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
    """Return what `ref` selects of a value: a member of a group, a part, or all of it.

    Lost members are absent from a group; picking one returns `LOST`.
    """
    if ref.member == EVERY:
        return value if not ref.part else {node: part_of(held, ref.part) for node, held in value.items()}
    if ref.member and value is not LOST:
        value = value.get(ref.member, LOST)
    return value if value is LOST or not ref.part else part_of(value, ref.part)
