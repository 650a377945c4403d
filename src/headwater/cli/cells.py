"""Many runs from one command: progress over them, Ctrl-C, and the command that carries on."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.options import direct
from headwater.cli.show import say

if TYPE_CHECKING:
    from rich.progress import Progress

    from headwater.sweep import Cell, Ended
    from headwater.sweep.processes import Crew

OURS, USER = 1, 2


def crew_for(engine: str | None, workers: int | None, address: str | None = None) -> tuple[Crew, dict[str, Any]]:
    """The processes that cells are trained in, and where each cell's own work is then done.

    Unless another engine is asked for, a cell keeps to its process and as many are trained at once as there are
    workers. On another engine there is one cell at a time, and the workers are the engine's.
    """
    from headwater.sweep.processes import Crew

    count = workers or os.cpu_count() or 1
    keys = direct(engine=engine, address=address)
    if keys.get("engine__name") in (None, "inline", "auto"):
        return Crew(count), {"engine__name": "inline", "engine__workers": 1}
    return Crew(1), keys | {"engine__workers": workers or 0}  # how many that is, the engine knows


def prepare_directories(cells: Sequence[Cell], *, force: bool) -> list[Cell]:
    """The cells that are not finished; with `force` all of them, their directories empty."""
    from headwater.cli.directory import check_path, clear
    from headwater.errors import OutputError
    from headwater.sweep import left_to_do

    known: dict[Path, Cell] = {}
    for cell in cells:
        other = known.setdefault(cell.path, cell)
        if other is not cell:
            raise OutputError(
                f"{cell.path} would hold two runs, {other.name} and {cell.name}; ask for them one after the other, "
                "each with its own --out"
            )
    for cell in cells:
        check_path(cell.path)
        if force:
            clear(cell.path)
    return left_to_do(cells)


def carry_out(crew: Crew, cells: Sequence[Cell], waiting: Sequence[Cell], *, quiet: bool) -> dict[Path, Ended]:
    """Train what is waiting; what is finished counts from the start. How each ended, by its directory."""
    if not waiting:
        return {}
    with Bar(cells, waiting, quiet) as bar:
        return dict(zip((cell.path for cell in waiting), crew.train(waiting, bar), strict=True))


def status_of(ended: Sequence[Ended]) -> int:
    """0, or what says that some cell failed: 1 if one of the failures is ours, 2 if none is."""
    failed = [each for each in ended if each.failed]
    return 0 if not failed else OURS if any(each.ours for each in failed) else USER


def interrupted(context: click.Context, cells: Sequence[Cell]) -> None:
    done = sum((cell.path / "result.json").is_file() for cell in cells)
    kept = f"{done} of {len(cells)} runs are finished and kept, and those that were under way go on where they were"
    say(f"interrupted; {kept if cells else 'nothing had begun'}; carry on with: {again(context)}")


def again(context: click.Context) -> str:
    """The command line that was given, without what would start anew."""
    words = ["headwater", context.info_name or ""]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not click.core.ParameterSource.COMMANDLINE or parameter.name == "force":
            continue
        value = context.params[parameter.name or ""]
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(parameter, click.Argument):
                words.append(str(each))
            elif each is True:
                words.append(parameter.opts[0])
            else:
                words += [parameter.opts[0], str(each)]
    return shlex.join(words)


class Bar:
    """Progress over cells: a moving line with the time left on a terminal, a line a finished cell elsewhere."""

    def __init__(self, cells: Sequence[Cell], waiting: Sequence[Cell], quiet: bool) -> None:
        self._all, self._show = len(cells), not quiet
        self._total = sum(cell.weight for cell in waiting) or 1.0
        self._done, self._parts = 0.0, {cell.path: 0.0 for cell in waiting}
        self._finished, self._began = len(cells) - len(waiting), time.monotonic()
        self._starts: dict[Path, float] = {}
        self._bar: Progress | None = None
        self._line: Any = None

    def __enter__(self) -> Bar:
        if self._show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[told]}"))
            times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            screen = Console(stderr=True, highlight=False)
            self._bar = Progress(*columns, *times, console=screen, transient=True, speed_estimate_period=600)
            self._bar.start()
            self._line = self._bar.add_task(f"{self._finished}/{self._all}", total=self._total, told="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, cell: Cell, kind: str, told: Any) -> None:
        if kind == "begin":
            self._starts[cell.path] = time.monotonic()
        elif kind == "round":
            done, rounds = told
            self._parts[cell.path] = cell.weight * done / max(1, rounds)
        else:
            self._parts[cell.path] = cell.weight
            self._finished += 1
            self._say_end(cell, told)
        if self._bar is not None:
            place = f"{self._finished}/{self._all}"
            self._bar.update(self._line, completed=sum(self._parts.values()), description=place, told=cell.name)

    def _say_end(self, cell: Cell, ended: Ended) -> None:
        if ended.failed:
            words = f"{cell.name} failed: {ended.failed}"
        elif self._bar is None:
            words = f"{cell.name}  {time.monotonic() - self._starts[cell.path]:.1f} s"
        else:
            return
        if self._bar is not None:
            self._bar.console.print(words, markup=False, soft_wrap=True)
        elif self._show or ended.failed:
            print(f"{self._finished}/{self._all} {words}", file=sys.stderr, flush=True)
