"""What is to be done at a party, written down: jobs, moves and choices between values, in the order of the method.

A task goes by its name. Only tasks and records of this library, and of the packages that the configuration names, are
found by it; nothing else that comes in is ever called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwater.core import records
from headwater.deploy.wire import Refused
from headwater.engines.base import Bundle, Job, Perhaps, Ref
from headwater.errors import TaskError

Trusted = Callable[[str], bool]
SHOWS_ROWS = ("headwater.tasks.local:own_rows", "headwater.tasks.consensus:public")  # of wherever they are done


@dataclass(frozen=True)
class Move:
    """A value, or a part of it, under a new name at another home. `tiers` are the edges it is charged on."""

    ref: Ref
    home: str
    name: str
    tiers: tuple[str, ...] = ()

    def refs(self) -> tuple[Ref, ...]:
        return (self.ref,)


@dataclass(frozen=True)
class Choice:
    """Another name for the new value or, where that was lost, for the old one; both are at one home."""

    new: Ref
    old: Ref
    name: str

    @property
    def home(self) -> str:
        return self.new.home

    def refs(self) -> tuple[Ref, ...]:
        return (self.new, self.old)


Step = Job | Move | Choice


def write(step: Step) -> dict[str, Any]:
    if isinstance(step, Move):
        return {"do": "move", "ref": ref_row(step.ref), "home": step.home, "name": step.name, "tiers": list(step.tiers)}
    if isinstance(step, Choice):
        return {"do": "choose", "new": ref_row(step.new), "old": ref_row(step.old), "name": step.name}
    try:
        inputs = records.encode(dict(step.inputs), _leaf)
    except TypeError as error:
        raise TaskError(f"{step.title} at {step.node} cannot be sent to {step.home}: {error}") from error
    where = records.address(step.task)
    if "<" in where:
        raise TaskError(f"{step.title} at {step.node} cannot be sent to {step.home}: a task must stand in a module")
    row = {"do": "job", "name": step.name, "task": where, "node": step.node, "home": step.home, "inputs": inputs}
    return row | {"key": list(step.key), "lost": step.lost, "size": step.size, "plain": sorted(step.plain)}


def read(row: Any, trusted: Trusted) -> Step:
    """A step that came in, or Refused."""
    try:
        if row["do"] == "move":
            return Move(ref_of(row["ref"]), str(row["home"]), str(row["name"]), tuple(map(str, row["tiers"])))
        if row["do"] == "choose":
            return Choice(ref_of(row["new"]), ref_of(row["old"]), str(row["name"]))
        if row["do"] != "job":
            raise ValueError(f"{row['do']!r} is nothing to do")
        task = records.find(str(row["task"]), trusted)
        if not (callable(task) and hasattr(task, "phase") and hasattr(task, "together")):
            raise ValueError(f"{row['task']} is no task")
        inputs = records.decode(row["inputs"], _back, trusted)
        named = (str(row["name"]), task, str(row["node"]), str(row["home"]))
        key, plain = tuple(row["key"]), frozenset(map(str, row["plain"]))
        return Job(*named, inputs, key, bool(row["lost"]), int(row["size"]), plain)
    except Exception as error:  # whatever is wrong with it, it is not ours to break over
        raise Refused(f"a step cannot be read ({type(error).__name__}: {error})") from error


def trust(*also: str) -> Trusted:
    """Modules of this library, and those of "package.module:function" in the configuration."""
    packages = {"headwater", *(name.partition(":")[0].partition(".")[0] for name in also if ":" in name)}
    return lambda module: module.partition(".")[0] in packages


def ref_row(ref: Ref) -> dict[str, Any]:
    return {"$": "ref", "name": ref.name, "home": ref.home, "part": records.encode(ref.part, _leaf)}


def _leaf(thing: Any) -> Any:
    if isinstance(thing, Ref):
        return ref_row(thing)
    if isinstance(thing, Bundle):
        return {"$": "bundle", "refs": [[child, _leaf(ref)] for child, ref in thing.refs.items()]}
    if isinstance(thing, Perhaps):
        return {"$": "perhaps", "held": _leaf(thing.held)}
    return records.UNKNOWN


def _back(row: Any) -> Any:
    if row["$"] == "ref":
        return ref_of(row)
    if row["$"] == "bundle":
        return Bundle({child: ref_of(ref) for child, ref in row["refs"]})
    if row["$"] == "perhaps":
        return Perhaps(_back(row["held"]))
    return records.UNKNOWN


def ref_of(row: Any) -> Ref:
    return Ref(str(row["name"]), str(row["home"]), records.decode(row["part"], _back))
