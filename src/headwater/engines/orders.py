"""Values and jobs as the pool keeps track of them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headwater.codecs import Info
from headwater.engines.base import Job
from headwater.engines.shared import Failure
from headwater.errors import TaskError


@dataclass(eq=False)
class Cell:
    """One value, under way or there. Names and jobs hold it; its file goes when nobody does any more."""

    holders: int = 1
    there: bool = False
    file: Path | None = None  # a lost value has none
    info: Info | None = None
    stored: dict[tuple[Path, tuple[Any, ...]], str] = field(default_factory=dict)  # (directory, part) → saved as
    waiting: list[Order] = field(default_factory=list)

    def release(self) -> None:
        self.holders -= 1
        if not self.holders and self.file is not None:
            self.file.unlink(missing_ok=True)


class Name(NamedTuple):
    """What a name stands for: a value or, after a move, perhaps a part of one."""

    cell: Cell
    part: tuple[Any, ...] = ()


@dataclass(eq=False)
class Order:
    """A job on its way. It can go to a worker when no input is missing."""

    number: int
    run: int
    job: Job
    pickled: bytes
    inputs: Mapping[str, Name]
    cell: Cell = field(default_factory=Cell)
    missing: int = 0
    deaths: int = 0

    @property
    def title(self) -> str:
        return f"{self.job.title} at {self.job.node} (home {self.job.home})"

    @property
    def file(self) -> str:
        return f"value-{self.number}"

    def error(self, failure: Failure) -> Exception:
        """What is raised here for what went wrong in a worker."""
        if failure.error:
            kind, arguments = pickle.loads(failure.error)
            error: Exception = kind.__new__(kind, *arguments)  # without its __init__, which may take others
        else:
            error = TaskError(f"{self.title} failed: {failure.summary}")
        if isinstance(error, TaskError):  # a user's mistake is a sentence and nothing more
            error.add_note(f"In a worker process:\n{failure.trace}")
        return error

    def __lt__(self, other: Order) -> bool:
        return self.number < other.number
