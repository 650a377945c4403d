"""The content of a `work` message: the steps that a party carries out, and the results that it reports.

Steps are jobs (a task at a node), moves of a value to another home, and choices between a new value and an old one, in
the order of the method. A task is sent by its name. Only tasks and records of this library, and of the packages that
the configuration names, are looked up; nothing else that a message names is ever called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from headwater.core import records
from headwater.core.serialization import ValueInfo
from headwater.deploy.payload import Refused
from headwater.engines.base import Done
from headwater.engines.jobs import Bundle, Job, Perhaps, Ref
from headwater.errors import TaskError

Trusted = Callable[[str], bool]
trust = records.trust


@dataclass(frozen=True)
class Move:
    """A value, or a part of it, under a new name at another home.

    Args:
        tiers: the tiers of the tree whose edges this move is charged on.
    """

    ref: Ref
    home: str
    name: str
    tiers: tuple[str, ...] = ()

    def refs(self) -> tuple[Ref, ...]:
        return (self.ref,)


@dataclass(frozen=True)
class Choice:
    """Another name for the new value or, if that was lost, for the old one. Both are at one home."""

    new: Ref
    old: Ref
    name: str

    @property
    def home(self) -> str:
        return self.new.home

    def refs(self) -> tuple[Ref, ...]:
        return (self.new, self.old)


Step = Job | Move | Choice


def encode(step: Step) -> dict[str, Any]:
    """A step as JSON.

    Raises:
        TaskError: if the step names a task or value that cannot be sent.
    """
    if isinstance(step, Move):
        row = {"do": "move", "ref": _encode_ref(step.ref), "home": step.home, "name": step.name}
        return row | {"tiers": list(step.tiers)}
    if isinstance(step, Choice):
        return {"do": "choose", "new": _encode_ref(step.new), "old": _encode_ref(step.old), "name": step.name}
    try:
        inputs = records.encode(dict(step.inputs), _encode_leaf)
    except TypeError as error:
        raise TaskError(f"{step.title} at {step.node} cannot be sent to {step.home}: {error}") from error
    where = records.address(step.task)
    if "<" in where:
        raise TaskError(f"{step.title} at {step.node} cannot be sent to {step.home}: a task must stand in a module")
    row = {"do": "job", "name": step.name, "task": where, "node": step.node, "home": step.home, "inputs": inputs}
    return row | {"key": list(step.key), "lost": step.lost, "size": step.size, "plain": sorted(step.plain)}


def decode(row: Any, trusted: Trusted) -> Step:
    """A step that was received.

    Args:
        row: what `encode` wrote, or whatever else another party sent.
        trusted: whether code of a module may be used; see `trust`.

    Raises:
        Refused: if it is not a valid step.
    """
    try:
        if row["do"] == "move":
            return Move(_decode_ref(row["ref"]), str(row["home"]), str(row["name"]), tuple(map(str, row["tiers"])))
        if row["do"] == "choose":
            return Choice(_decode_ref(row["new"]), _decode_ref(row["old"]), str(row["name"]))
        if row["do"] != "job":
            raise ValueError(f"{row['do']!r} is nothing to do")
        task = records.find(str(row["task"]), trusted)
        if not (callable(task) and all(hasattr(task, name) for name in ("phase", "together", "shows_rows"))):
            raise ValueError(f"{row['task']} is no task")
        inputs = records.decode(row["inputs"], _decode_leaf, trusted)
        named = (str(row["name"]), task, str(row["node"]), str(row["home"]))
        key, plain = tuple(row["key"]), frozenset(map(str, row["plain"]))
        return Job(*named, inputs, key, bool(row["lost"]), int(row["size"]), plain)
    except Exception as error:  # malformed input of any kind must not end this process
        raise Refused(f"a step cannot be read ({type(error).__name__}: {error})") from error


def _encode_ref(ref: Ref) -> dict[str, Any]:
    return {"$": "ref", "name": ref.name, "home": ref.home, "part": records.encode(ref.part, _encode_leaf)}


def _decode_ref(row: Any) -> Ref:
    return Ref(str(row["name"]), str(row["home"]), records.decode(row["part"], _decode_leaf))


def _encode_leaf(thing: Any) -> Any:
    if isinstance(thing, Ref):
        return _encode_ref(thing)
    if isinstance(thing, Bundle):
        return {"$": "bundle", "refs": [[child, _encode_leaf(ref)] for child, ref in thing.refs.items()]}
    if isinstance(thing, Perhaps):
        return {"$": "perhaps", "held": _encode_leaf(thing.held)}
    return records.UNKNOWN


def _decode_leaf(row: Any) -> Any:
    if row["$"] == "ref":
        return _decode_ref(row)
    if row["$"] == "bundle":
        return Bundle({child: _decode_ref(ref) for child, ref in row["refs"]})
    if row["$"] == "perhaps":
        return Perhaps(_decode_leaf(row["held"]))
    return records.UNKNOWN


@dataclass
class StepResults:
    """What a party reports about the steps of a request; the values themselves are the payload of the reply.

    Args:
        infos: size and kind of each value by name; None if it was lost.
        done: reports of finished jobs.
        events: log lines for the parties above.
        void: too few parties answered, so that nothing of this counts.
        same: choices of parties that were lost; the old value, which still is at its home, takes the new name.
    """

    infos: dict[str, ValueInfo | None] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    void: bool = False
    same: dict[str, Ref] = field(default_factory=dict)

    def add(self, other: StepResults) -> None:
        """Take over the reports, events and choices of a party below; infos and void are the caller's to judge."""
        self.done += other.done
        self.events += other.events
        self.same |= other.same

    def encode(self) -> dict[str, Any]:
        """As the head of a reply."""
        infos = {name: None if info is None else list(info) for name, info in self.infos.items()}
        done = [[each.name, dict(each.notes[each.node]), each.start, each.end] for each in self.done]
        return {"infos": infos, "done": done, "same": list(self.same), "events": self.events, "void": self.void}

    @classmethod
    def decode(cls, head: Mapping[str, Any], steps: Iterable[Step]) -> StepResults:
        """From the head of a reply to these steps. Any exception means that the reply is invalid."""
        steps = list(steps)
        jobs = {step.name: step for step in steps if isinstance(step, Job)}
        olds = {step.name: step.old for step in steps if isinstance(step, Choice)}
        return cls(
            infos={str(name): _decode_info(row) for name, row in head["infos"].items()},
            done=[_decode_done(row, jobs) for row in head["done"]],
            events=[str(event) for event in head["events"]],
            void=head["void"] is True,
            same={name: olds[name] for name in head["same"]},
        )


def _decode_info(row: Any) -> ValueInfo | None:
    if row is None:
        return None
    info = ValueInfo(int(row[0]), int(row[1]), str(row[2]))
    if min(info[:2]) < 0:
        raise ValueError(f"a size of {row}")
    return info


def _decode_done(row: Any, jobs: Mapping[str, Job]) -> Done:
    """The report of a requested job. Only its figures are taken from the reply; the rest is known here."""
    name, notes, start, end = row
    job, numbers = jobs[name], {str(key): float(value) for key, value in notes.items()}
    times = (float(start), float(end))
    if not all(map(isfinite, times)):
        raise ValueError(f"the times {times}")
    return Done(name, job.title, job.phase, {job.node: numbers}, job.round, *times)
