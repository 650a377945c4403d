"""`headwater runs`: the runs in a directory, a line each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.options import Json
from headwater.cli.terminal import as_json, console, print_lines, table
from headwater.core.records import parse_toml
from headwater.errors import OutputError, UserError
from headwater.report.numbers import percent
from headwater.training.run_numbers import RUNS

Folder = Annotated[Path, typer.Argument(metavar="[DIR]", show_default=False)]
FILES = ("config.toml", "rounds.jsonl", "result.json", "checkpoints")
FINISHED, STOPPED, RUNNING, BROKEN = "finished", "stopped", "running", "broken"


@dataclass(frozen=True)
class RunLine:
    """What a list of runs shows of one.

    Args:
        path: its directory.
        algorithm: its method.
        data: name of its data.
        seed: its seed.
        accuracy: of the last measured model, between 0 and 1; None before the first measurement.
        done: finished rounds.
        rounds: rounds in all; None if that is not known.
        changed: time of the last change in seconds since 1970.
        state: finished, stopped, running or broken.
        why: what is broken, or who runs it.
    """

    path: str
    algorithm: str
    data: str
    seed: int
    accuracy: float | None
    done: int
    rounds: int | None
    changed: float
    state: str
    why: str = ""


def runs(directory: Folder = RUNS, json: Json = False) -> None:
    """List the runs in a directory and below it, the newest first.

    Method, data, accuracy, rounds, when it last changed, and its state: finished, stopped (`headwater resume DIR`
    carries it on), running, or broken.

    Example: `headwater runs runs/demo`
    """
    if not directory.is_dir():
        way = "runs are written there without --out" if directory == RUNS else "name a directory that holds runs"
        raise OutputError(f"there is no directory {directory}; {way}")
    found = sorted((_line(path) for path in _inside(directory)), key=lambda line: -line.changed)
    if json:
        as_json([asdict(line) for line in found])
        return
    if not found:
        print_lines(f"no run was found in {directory} or below it")
        return
    rows = [
        [
            _inner(line, directory),
            line.algorithm,
            line.data,
            percent(line.accuracy),
            _rounds(line),
            _when(line.changed),
            line.state,
        ]
        for line in found
    ]
    head = ["run", "method", "data", "accuracy", "rounds", "changed", "state"]
    console().print(table(head, rows, title=f"runs in {directory}", right=["accuracy", "rounds"]))
    print_lines(*(f"{line.path}: {line.why}" for line in found if line.why))


def _inner(line: RunLine, directory: Path) -> str:
    inner = str(Path(line.path).relative_to(directory))
    return line.path if inner == "." else inner


def _inside(directory: Path) -> Iterator[Path]:
    """Directories of runs; links such as runs/latest are not followed."""
    here = {item.name: item for item in directory.iterdir()}
    inner = [item for name, item in here.items() if item.is_dir() and not item.is_symlink() and name[0] != "."]
    if "config.toml" in here and (len(here.keys() & set(FILES)) > 1 or not inner):
        yield directory
    elif "rounds.jsonl" in here or "result.json" in here:
        yield directory  # a run that has lost its configuration
    else:
        for item in sorted(inner):
            yield from _inside(item)


def _line(path: Path) -> RunLine:
    from headwater.report.runs import read
    from headwater.training.run_lock import holder_of

    times = [(path / name).stat().st_mtime for name in FILES[:3] if (path / name).exists()]
    changed = max(times, default=path.stat().st_mtime)
    try:
        run = read(path)
    except (UserError, OSError) as error:
        return RunLine(str(path), "–", "–", 0, None, 0, None, changed, BROKEN, str(error))
    data: Any = run.config.get("data", {})
    name = Path(str(data.get("name", "–") if isinstance(data, dict) else "–")).name
    rounds = run.config.get("rounds")
    holder = holder_of(path)
    state = FINISHED if run.finished else RUNNING if holder else STOPPED
    why = f"run by {holder}" if holder and not run.finished else ""
    if run.damage or not _readable(path):
        state, why = BROKEN, run.damage or f"{path / 'config.toml'} is not a configuration"
    total = rounds if isinstance(rounds, int) else None
    return RunLine(str(path), run.algorithm, name, run.seed, run.accuracy, run.done, total, changed, state, why)


def _readable(path: Path) -> bool:
    try:
        return "algorithm" in parse_toml((path / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def _rounds(line: RunLine) -> str:
    return f"{line.done}/{'?' if line.rounds is None else line.rounds}"


def _when(seconds: float) -> str:
    """The time of day if it was today, else the date too."""
    then, today = time.localtime(seconds), time.localtime()
    same = then[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M", then)
