"""What came of a number of steps, and how one party tells another of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from headwater.core.serialization import Info
from headwater.deploy.program import Choice, Step
from headwater.engines.base import Done, Job, Ref


@dataclass
class Outcome:
    """Of a number of steps: size and kind of each value, reports, and what happened that somebody should know."""

    infos: dict[str, Info | None] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    void: bool = False  # too few answered, so that all of it counts for nothing
    same: dict[str, Ref] = field(default_factory=dict)  # choices that somebody who was lost could not make: the old

    def write(self) -> dict[str, Any]:
        """As the head of a reply."""
        infos = {name: None if info is None else list(info) for name, info in self.infos.items()}
        done = [[each.name, dict(each.notes[each.node]), each.start, each.end] for each in self.done]
        return {"infos": infos, "done": done, "same": list(self.same), "events": self.events, "void": self.void}

    @classmethod
    def read(cls, head: Mapping[str, Any], steps: Iterable[Step]) -> Outcome:
        """From the head of a reply to these steps; any error means that it is none."""
        asked = list(steps)
        jobs = {step.name: step for step in asked if isinstance(step, Job)}
        olds = {step.name: step.old for step in asked if isinstance(step, Choice)}
        return cls(
            infos={str(name): _info(row) for name, row in head["infos"].items()},
            done=[_done(row, jobs) for row in head["done"]],
            events=[str(event) for event in head["events"]],
            void=head["void"] is True,
            same={name: olds[name] for name in head["same"]},
        )


def _info(row: Any) -> Info | None:
    if row is None:
        return None
    found = Info(int(row[0]), int(row[1]), str(row[2]))
    if min(found[:2]) < 0:
        raise ValueError(f"a size of {row}")
    return found


def _done(row: Any, jobs: Mapping[str, Job]) -> Done:
    """A report, of a job that was asked for: what that was is known here, and only the figures are taken over."""
    name, notes, start, end = row
    job, numbers = jobs[name], {str(key): float(value) for key, value in notes.items()}
    times = (float(start), float(end))
    if not all(map(isfinite, times)):
        raise ValueError(f"the times {times}")
    return Done(name, job.title, job.phase, {job.node: numbers}, job.round, *times)
