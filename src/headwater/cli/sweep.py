"""`headwater sweep`: a run for every combination of values; worker processes and directories as in `reproduce`."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from headwater.cli.directories import check_path, clear, directory_for, plain_name
from headwater.cli.options import Options, RunsAtOnce, Source, takes
from headwater.cli.run import INTERRUPTED
from headwater.cli.terminal import SweepProgress, as_json, print_lines, say, status
from headwater.errors import ConfigError, OutputError
from headwater.training.run_numbers import RUNS

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.sweep import Cell, CellOutcome
    from headwater.sweep.processes import SweepWorkers

Grid = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="KEY=V1,V2", help="Values of a configuration key; repeatable."),
]
Axis = tuple[str, list[str]]  # a key and its values
Point = dict[str, str]  # one value of each key
OUR_MISTAKE, USER_MISTAKE = 1, 2  # exit statuses
LONGEST = 120  # letters of a directory's name


@takes("sets seed seeds rounds out engine address workers device data_dir quiet json force")
def sweep(
    options: Options, context: typer.Context, source: Source = None, grid: Grid = None, workers: RunsAtOnce = None
) -> int:
    """Train one run for every combination of values.

    Finished runs are kept and skipped on the next call; interrupted runs are continued. Without --out, results go to
    runs/sweep-METHOD-DATA-KEYS-001; the same command, also with a wider grid, carries on there, and one with other
    settings gets the next number.

    Example: `headwater sweep --grid local.lr=0.01,0.1 --grid algorithm.name=fedavg,fedhead --rounds 10`

    Keys that are often swept: local.lr, local.epochs, partition.alpha, partition.clients, algorithm.name.
    """
    axes = [axis(text) for text in grid or []]
    if not axes:
        raise ConfigError("a sweep needs at least one --grid KEY=V1,V2, such as --grid local.lr=0.01,0.1")
    for key, _ in axes:
        if [each for each, _ in axes].count(key) > 1:
            raise ConfigError(f"--grid names {key} twice; give all of its values at once")
    processes, engine_keys = start_workers(options, workers)
    keys = options.keys() | engine_keys
    points = [dict(zip([key for key, _ in axes], values, strict=True)) for values in product(*(v for _, v in axes))]
    methods = next((values for key, values in axes if key == "algorithm.name"), [])
    configs = [
        [_config(source, options.sets or [], point, keys | {"seed": seed}, methods) for seed in options.all_seeds()]
        for point in points
    ]
    check_path(options.out or RUNS)
    names = [", ".join(f"{key}={value}" for key, value in point.items()) for point in points]
    out = options.out or _default_out(configs[0][0], axes, _cells(names, configs, Path())[1])
    places, cells = _cells(names, configs, out)
    waiting = prepare_directories(cells, force=options.force)
    if not options.quiet:
        kept = len(cells) - len(waiting)
        say(f"{len(points)} points, {len(cells)} runs{f', of which {kept} are finished' if kept else ''}")
    with processes:
        try:
            outcomes = train_all(processes, cells, waiting, quiet=options.quiet)
        except KeyboardInterrupt:
            say_interrupted(context, cells)
            return INTERRUPTED
    rows = [(_label(point), point, place) for point, place in zip(points, places, strict=True)]
    _show(rows, outcomes, out, options)
    return exit_status(list(outcomes.values()))


def axis(text: str, option: str = "--grid") -> Axis:
    """Key and values of one `--grid` or `--tune`."""
    key, equals, values = text.partition("=")
    parts = [value.strip() for value in _split(values)]
    if not equals or not key.strip() or not all(parts):
        raise ConfigError(f"{option} takes KEY=V1,V2, such as local.lr=0.01,0.1, got {text!r}")
    repeated = [value for value in parts if parts.count(value) > 1]
    if repeated:
        raise ConfigError(f"{option} names {repeated[0]} twice for {key.strip()}, got {text!r}")
    if key.strip() == "seed":
        raise ConfigError("seed is no key of a grid, since runs that differ in it are averaged; use --seeds 0,1,2")
    return key.strip(), parts


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes, since a value may be a list."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _config(source: str | None, sets: list[str], point: Point, options: dict[str, Any], methods: list[str]) -> Config:
    """The configuration of one point. In a grid of methods, a key that only some of them have is set for those only."""
    from headwater.config import Config

    pairs = [*sets, *(f"{key}={value}" for key, value in point.items() if key != "algorithm.name")]
    if not methods:
        return Config.load(source, pairs, **options)
    return Config.load_each(methods, source, pairs, **options)[methods.index(point["algorithm.name"])]


def _label(point: Point) -> str:
    """Short name of a point: keys without their section where that is unambiguous."""
    lasts = [key.rpartition(".")[2] for key in point]
    return ", ".join(
        f"{last if lasts.count(last) == 1 and last != 'name' else key} {value}"
        for last, (key, value) in zip(lasts, point.items(), strict=True)
    ).replace("algorithm.name ", "")


def _cells(names: Sequence[str], configs: list[list[Config]], out: Path) -> tuple[list[list[Path]], list[Cell]]:
    """The directories of every point by seed, and the runs; equal configurations share one run."""
    from headwater.sweep import Cell, identity

    known: dict[str, Cell] = {}
    places = []
    for name, folder, alike in zip(names, _folders(names), configs, strict=True):
        here = []
        for config in alike:
            cell = Cell(f"{name} · seed {config.seed}", out / "cells" / folder / f"seed-{config.seed}", config)
            here.append(known.setdefault(identity(config), cell).path)
        places.append(here)
    return places, list(known.values())


def _folders(names: Sequence[str]) -> list[str]:
    """Directory names, distinct on file systems that ignore case.

    A shortened name ends with a hash of its point, so that a wider grid finds the directory again.
    """
    folders: list[str] = []
    taken: set[str] = set()
    for name in names:
        plain = re.sub(r"[^\w.+=,-]+", "-", name)
        if len(plain) > LONGEST or plain.lower() in taken:
            mark = hashlib.sha256(name.encode()).hexdigest()[:8]
            plain = f"{plain[: LONGEST - len(mark) - 1]}-{mark}"
        taken.add(plain.lower())
        folders.append(plain)
    return folders


def _default_out(config: Config, axes: Sequence[Axis], cells: Sequence[Cell]) -> Path:
    """runs/sweep-<method>-<data>-<keys>-001, or the next number if that one has other settings."""
    from headwater.sweep import identity

    keys = "-".join(key.rpartition(".")[2] for key, _ in axes)
    stem = RUNS / f"sweep-{plain_name(config.method)}-{plain_name(config.data.name)}-{keys}"
    return directory_for(stem, {str(cell.path): identity(cell.config) for cell in cells})


def _show(
    rows: Sequence[tuple[str, dict[str, str], list[Path]]],
    outcomes: dict[Path, CellOutcome],
    out: Path,
    options: Options,
) -> None:
    from headwater.cli.compare import print_method_table
    from headwater.report.grouping import MethodRuns
    from headwater.report.method_table import dicts, tabulate
    from headwater.report.method_text import csv_text, markdown
    from headwater.report.runs import read

    failed = {path: end.failed for path, end in outcomes.items() if end.failed}
    good = [(name, point, [path for path in paths if path not in failed]) for name, point, paths in rows]
    good = [(name, point, paths) for name, point, paths in good if paths]
    by_method = tabulate([MethodRuns(name, tuple(read(path) for path in paths)) for name, _, paths in good])
    if by_method.rows:
        from headwater.report import write
        from headwater.training.checkpoint import write_whole

        with status("writing the report …", options.quiet):
            write_whole(out / "table.csv", csv_text(by_method))
            write_whole(out / "table.md", markdown(by_method))
            write([path for *_, paths in good for path in paths], out / "report.html", keys=list(rows[0][1]))
    if options.json:
        lines = [row | {"settings": point} for row, (_, point, _) in zip(dicts(by_method), good, strict=True)]
        as_json({"rows": lines, "failed": {str(path): sentence for path, sentence in failed.items()}})
        return
    if by_method.rows:
        print_method_table(by_method)
    print_lines(*(f"{path} failed: {sentence}" for path, sentence in failed.items()))
    if by_method.rows:
        print_lines(out / "table.md", out / "table.csv", f"report: {out / 'report.html'}")


# -- shared with `headwater reproduce`


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
