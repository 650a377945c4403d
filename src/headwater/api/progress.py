"""The progress bar of `hw.run` and `hw.compare`: in a terminal and in a notebook, and nowhere else."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from headwater.training.loop import Event

PAUSE = 0.1  # seconds between two updates of a notebook's display


class ProgressBar:
    """Shows one run after the other; removed at the end. Warnings of a run stay.

    Args:
        wanted: False shows nothing.
        watch: a function of the user's own that gets every event too.
    """

    def __init__(self, wanted: bool, watch: Callable[[Event], None] | None = None) -> None:
        self._display: _Terminal | _Notebook | None = None
        if wanted and in_notebook():
            self._display = _Notebook()
        elif wanted and sys.stderr is not None and sys.stderr.isatty():
            self._display = _Terminal()
        self._watch, self._title = watch, ""
        self._round, self._share, self._accuracy = 0, 0.0, ""

    @property
    def event(self) -> Callable[[Event], None] | None:
        """What a run calls with its events; None if nobody wants them."""
        return self._event if self._display is not None else self._watch

    def begin(self, title: str) -> None:
        """Start with another run.

        Args:
            title: shown in front of the bar.
        """
        self._title, self._round, self._share, self._accuracy = title, 0, 0.0, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.close()

    def _event(self, event: Event) -> None:
        if self._watch is not None:
            self._watch(event)
        assert self._display is not None
        if event.kind == "warning":
            self._display.say(f"{self._title}: {event.text}")
            return
        if event.kind in ("start", "round", "end"):
            self._round, self._share = event.round, 0.0
        if event.accuracy is not None:
            self._accuracy = f"accuracy {event.accuracy:.1%}"
        task = event.kind == "task"
        if task and event.round > self._round + 1:  # the bar shows the first round that is not finished
            return
        if task and event.total:  # phases differ in length; the bar never goes back
            self._share = max(self._share, 0.9 * event.done / event.total)
        phase = f"{event.phase} {event.done}/{event.total}" if task else ""
        current = f"round {min(self._round + 1, event.rounds)}/{event.rounds}"
        detail = " · ".join(part for part in (current, phase, self._accuracy) if part)
        self._display.show(self._title, (self._round + self._share) / event.rounds, detail, last=event.kind == "end")


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


class _Terminal:
    """A line on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[detail]}")]
        screen = Console(stderr=True, highlight=False)
        printed = sys.stdout is not None and sys.stdout.isatty()  # else what is printed must stay in standard output
        self._bar = Progress(*columns, TimeRemainingColumn(), console=screen, transient=True, redirect_stdout=printed)
        self._bar.start()
        self._line = self._bar.add_task("", total=1.0, detail="")

    def show(self, title: str, share: float, detail: str, last: bool) -> None:
        self._bar.update(self._line, description=title, completed=share, detail=detail)

    def say(self, text: str) -> None:
        self._bar.console.print(f"warning: {text}", markup=False, soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()


class _Notebook:
    """An output of the cell that is updated in place. It needs no widgets."""

    def __init__(self) -> None:
        shell: Any = importlib.import_module("IPython.display")
        self._html, self._show = shell.HTML, shell.display
        self._handle = self._show(self._html(""), display_id=True)
        self._next = 0.0

    def show(self, title: str, share: float, detail: str, last: bool) -> None:
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + PAUSE
        bar = f'<progress value="{share:.3f}" max="1" style="width:12em;vertical-align:middle"></progress>'
        self._handle.update(self._html(f"{escape(title)} {bar} {escape(detail)}"))

    def say(self, text: str) -> None:
        self._show(self._html(f"<div>warning: {escape(text)}</div>"))

    def close(self) -> None:
        self._handle.update(self._html(""))
