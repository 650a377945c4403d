"""Terminal output: results on standard output; messages and progress on standard error."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from headwater.core.records import to_json

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

    from headwater.sweep import Cell, CellOutcome
    from headwater.training.loop import Event

CellText = str | tuple[str, bool]  # a text, or a text and whether it is the best of its column
BEST = "◂"  # behind the best cell of a column
PLAIN = {"–": "-", "—": "-", "−": "-", "±": "+-", "×": "x", "·": "*", "√": "sqrt", "→": "->", "≤": "<=", "≥": ">="}
PLAIN |= {BEST: "<"}


def say(text: str) -> None:
    """Print one line to standard error, without markup or wrapping, so that it can be searched and copied."""
    print("headwater:", " ".join(text.split()), file=sys.stderr, flush=True)


def as_json(value: Any) -> None:
    """Print a value as JSON to standard output, for `--json`."""
    print(to_json(value, indent=2))


def print_lines(*lines: object) -> None:
    """Print lines to standard output, without markup or wrapping, so that they can be searched and copied."""
    for line in lines:
        console().print(str(line), markup=False, soft_wrap=True)


def console() -> Console:
    """Standard output for people. Created anew for each call, since tests and notebooks replace `sys.stdout`."""
    return _console(sys.stdout.isatty())


def _console(terminal: bool, *, stderr: bool = False) -> Console:
    from rich.console import Console

    fixed = None if terminal or os.environ.get("COLUMNS") else 140
    return Console(highlight=False, stderr=stderr, width=fixed)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[CellText]],
    *,
    title: str = "",
    right: Sequence[str] = (),
    whole: int = 0,
) -> Table:
    """A plain table.

    Args:
        headings: names of the columns.
        rows: cells by row.
        title: shown above the table.
        right: headings of columns with numbers, which are aligned to the right.
        whole: up to so many letters of a name in the first column stay on one line.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left", title_style="bold", pad_edge=False
    )
    lines = list(rows)
    names = min(whole, max((len(row[0]) for row in lines if isinstance(row[0], str)), default=0))
    for at, heading in enumerate(headings):
        longest = max(0 if at else names, *map(len, heading.split()), 0)  # no word of a heading is split
        grid.add_column(heading, justify="right" if heading in right else "left", overflow="fold", min_width=longest)
    for row in lines:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else _best(*cell) for cell in row))
    return grid


def _best(text: str, best: bool) -> Text:
    """The best cell of a column is bold and has a mark, which also shows without colours."""
    from rich.text import Text

    return Text(f"{text}\u00a0{BEST}", style="bold") if best else Text(text)


def pairs(rows: Iterable[tuple[str, str]], title: str) -> Table:
    """A table of two columns, name and value, without headings."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        box=None, title=Text(title), title_justify="left", title_style="bold", show_header=False, pad_edge=False
    )
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(value))
    return grid


def closest_characters(error: UnicodeError) -> tuple[str | bytes, int]:
    """Error handler of `codecs`: replaces a character that the terminal cannot show by the closest ASCII text.

    Bytes of a file name that could not be decoded are written as they are.
    """
    import unicodedata

    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    if 0xDC80 <= ord(sign) <= 0xDCFF:  # a byte that could not be decoded
        return bytes([ord(sign) - 0xDC00]), error.start + 1
    parts = unicodedata.normalize("NFKD", PLAIN.get(sign, sign)).replace("\u2044", "/")
    close, name = parts.encode("ascii", "ignore").decode(), unicodedata.name(sign, "")
    if not close and not unicodedata.combining(sign):
        close = name.rpartition(" ")[2].lower() if name.startswith("GREEK ") else "?"
    return close, error.start + 1


def reading(name: str) -> str:
    """What is being done to get the data of this name: a file is read, and a function of the user's own is run."""
    from headwater.data import DATASETS
    from headwater.registry import path_exists

    runs = ":" in name and name not in DATASETS and not path_exists(name)
    return f"running the function {name} for the data" if runs else f"reading {name}"


@contextmanager
def status(text: str, quiet: bool) -> Iterator[None]:
    """Show what is being done while the block runs."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        with _console(True, stderr=True).status(text, spinner="line"):
            yield
    else:
        print(text, file=sys.stderr, flush=True)
        yield


class _ProgressBar(ABC):
    """A line on standard error: a moving bar on a terminal, plain lines elsewhere, nothing with `quiet`."""

    def __init__(self, quiet: bool, *, total: float | None = None, period: float = 30.0) -> None:
        self._show, self._total, self._period = not quiet, total, period
        self._bar: Progress | None = None
        self._line: Any = None

    @abstractmethod
    def _title(self) -> str:
        """The text before the bar."""

    def __enter__(self) -> Self:
        if self._show and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = [TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[detail]}")]
            if self._total is not None:
                columns += [TimeElapsedColumn(), TextColumn("left")]
            screen = _console(True, stderr=True)
            self._bar = Progress(
                *columns, TimeRemainingColumn(), console=screen, transient=True, speed_estimate_period=self._period
            )
            self._bar.start()
            self._line = self._bar.add_task(self._title(), total=self._total, detail="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _print(self, text: str, *, always: bool = False) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, soft_wrap=True)
        elif self._show or always:
            print(text, file=sys.stderr, flush=True)


class RunProgress(_ProgressBar):
    """Progress of one run, to be passed to `train` as `watch`.

    Attributes:
        round: the last finished round.
    """

    def __init__(self, title: str, quiet: bool) -> None:
        super().__init__(quiet)
        self.title, self.round = title, 0
        self._accuracy, self._share = "", 0.0

    def _title(self) -> str:
        return self.title

    def __call__(self, event: Event) -> None:
        if event.kind in ("start", "round", "end"):
            self.round = event.round
        if event.accuracy is not None:
            self._accuracy = f"accuracy {event.accuracy:.1%}"
        if event.kind == "warning":
            self._print(f"warning: {event.text}")
        elif self._bar is not None:
            self._move(self._bar, event)
        elif event.kind == "start" and event.round:
            self._print(f"{self.title}: carrying on after round {event.round}")
        elif event.kind == "round":
            score = f"  accuracy {event.accuracy:.1%}" if event.accuracy is not None else ""
            self._print(f"{self.title}: round {event.round}/{event.rounds}{score}  {event.seconds:.1f} s")

    def _move(self, bar: Progress, event: Event) -> None:
        if event.kind == "task" and event.round > self.round + 1:  # the bar shows the first round that is not finished
            return
        # Within a round the bar follows the phase that is furthest on: phases differ in length, and it never goes back.
        self._share = max(self._share, 0.9 * event.done / event.total) if event.kind == "task" and event.total else 0.0
        phase = f"{event.phase} {event.done}/{event.total}" if event.kind == "task" else ""
        current = f"round {min(self.round + 1, event.rounds)}/{event.rounds}"
        detail = " · ".join(part for part in (current, phase, self._accuracy) if part)
        bar.update(self._line, total=event.rounds, completed=self.round + self._share, detail=detail)


class SweepProgress(_ProgressBar):
    """Progress over many runs; a bar shows the time left, plain lines name each run that ended.

    Args:
        cells: all runs, finished ones included.
        waiting: the runs that are still to be trained.
        quiet: show failures only.
    """

    def __init__(self, cells: Sequence[Cell], waiting: Sequence[Cell], quiet: bool) -> None:
        super().__init__(quiet, total=sum(cell.weight for cell in waiting) or 1.0, period=600)
        self._all, self._finished = len(cells), len(cells) - len(waiting)
        self._parts = {cell.path: 0.0 for cell in waiting}
        self._starts: dict[Path, float] = {}

    def _title(self) -> str:
        return f"{self._finished}/{self._all}"

    def __call__(self, cell: Cell, kind: str, detail: Any) -> None:
        if kind == "begin":
            self._starts[cell.path] = time.monotonic()
        elif kind == "round":
            done, rounds = detail
            self._parts[cell.path] = cell.weight * done / max(1, rounds)
        else:
            self._parts[cell.path] = cell.weight
            self._finished += 1
            self._end(cell, detail)
        if self._bar is not None:
            done = sum(self._parts.values())
            self._bar.update(self._line, completed=done, description=self._title(), detail=cell.name)

    def _end(self, cell: Cell, outcome: CellOutcome) -> None:
        place = "" if self._bar is not None else f"{self._title()} "
        if outcome.failed:
            self._print(f"{place}{cell.name} failed: {outcome.failed}", always=True)
        elif self._bar is None:
            self._print(f"{place}{cell.name}  {time.monotonic() - self._starts[cell.path]:.1f} s")
