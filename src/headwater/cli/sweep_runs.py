"""Runs of a sweep or of a paper's table: worker processes, directories, Ctrl-C, and the command that continues."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.options import Options
from headwater.cli.terminal import SweepProgress, say

if TYPE_CHECKING:
    from headwater.sweep import Cell, CellOutcome
    from headwater.sweep.processes import SweepWorkers

OUR_MISTAKE, USER_MISTAKE = 1, 2  # exit statuses


def start_workers(options: Options, workers: int | None) -> tuple[SweepWorkers, dict[str, Any]]:
    """The processes that train the runs, and the configuration keys of each run's engine.

    By default every run is trained inside one worker process, and `workers` runs are trained at once. On another
    engine one run is trained at a time, and `workers` counts that engine's processes.

    Args:
        options: `engine` and `address` are used.
        workers: number of processes; None or 0 for one per core.
    """
    from headwater.sweep.processes import SweepWorkers

    keys = Options(engine=options.engine, address=options.address).keys()
    if keys.get("engine__name") in (None, "inline", "auto"):
        return SweepWorkers(workers or os.cpu_count() or 1), {"engine__name": "inline", "engine__workers": 1}
    return SweepWorkers(1), keys | {"engine__workers": workers or 0}


def prepare_directories(cells: Sequence[Cell], *, force: bool) -> list[Cell]:
    """Check the directories of all runs and return the unfinished ones.

    Args:
        cells: the runs; no two may share a directory.
        force: clear all directories, so that every run starts anew.
    """
    from headwater.cli.directory import check_path, clear
    from headwater.errors import OutputError
    from headwater.sweep import unfinished

    known: dict[Path, Cell] = {}
    for cell in cells:
        other = known.setdefault(cell.path, cell)
        if other is not cell:
            raise OutputError(
                f"{cell.path} would hold two runs, {other.name} and {cell.name}; train them one after the other, "
                "each with its own --out"
            )
    for cell in cells:
        check_path(cell.path)
        if force:
            clear(cell.path)
    return unfinished(cells)


def train_all(
    processes: SweepWorkers, cells: Sequence[Cell], waiting: Sequence[Cell], *, quiet: bool
) -> dict[Path, CellOutcome]:
    """Train the waiting runs; returns how each ended, by its directory."""
    if not waiting:
        return {}
    with SweepProgress(cells, waiting, quiet) as progress:
        return dict(zip((cell.path for cell in waiting), processes.train(waiting, progress), strict=True))


def exit_status(outcomes: Sequence[CellOutcome]) -> int:
    """0 if no run failed, 1 if a failure is a defect of Headwater, else 2."""
    failed = [each for each in outcomes if each.failed]
    return 0 if not failed else OUR_MISTAKE if any(each.ours for each in failed) else USER_MISTAKE


def say_interrupted(context: click.Context, cells: Sequence[Cell]) -> None:
    """Tell the user what is kept after Ctrl-C and which command continues."""
    done = sum((cell.path / "result.json").is_file() for cell in cells)
    kept = f"{done} of {len(cells)} runs are finished and kept, and those that were under way go on where they were"
    say(f"interrupted; {kept if cells else 'nothing had begun'}; carry on with: {_same_command(context)}")


def _same_command(context: click.Context) -> str:
    """The command line as it was given, without --force."""
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
