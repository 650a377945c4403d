"""Progress on standard error: a moving line on a terminal, a plain line a round elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

    from headwater.training.loop import Event


@contextmanager
def status(text: str, quiet: bool) -> Iterator[None]:
    """Say what is being done while it is."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True, highlight=False).status(text, spinner="line"):
            yield
    else:
        print(text, file=sys.stderr, flush=True)
        yield


class Watch:
    """Follows a run; `round` is the last one that is finished."""

    def __init__(self, title: str, quiet: bool) -> None:
        self.title, self.round = title, 0
        self._show = not quiet
        self._bar: Progress | None = None
        self._line: Any = None
        self._accuracy, self._share = "", 0.0

    def __enter__(self) -> Watch:
        if self._show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[told]}"))
            self._bar = Progress(
                *columns, TimeRemainingColumn(), console=Console(stderr=True, highlight=False), transient=True
            )
            self._bar.start()
            self._line = self._bar.add_task(self.title, total=None, told="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        if event.kind in ("start", "round", "end"):
            self.round = event.round
        if event.accuracy is not None:
            self._accuracy = f"accuracy {event.accuracy:.1%}"
        if event.kind == "warning":
            self._warn(event.text)
        elif self._bar is not None:
            self._move(event)
        elif self._show and event.kind == "start" and event.round:
            print(f"{self.title}: carrying on after round {event.round}", file=sys.stderr, flush=True)
        elif self._show and event.kind == "round":
            told = f"{self.title}: round {event.round}/{event.rounds}"
            score = f"  accuracy {event.accuracy:.1%}" if event.accuracy is not None else ""
            print(f"{told}{score}  {event.seconds:.1f} s", file=sys.stderr, flush=True)

    def _warn(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(f"warning: {text}", markup=False, soft_wrap=True)
        elif self._show:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def _move(self, event: Event) -> None:
        assert self._bar is not None
        if event.kind == "task" and event.round > self.round + 1:  # the bar shows the round that will be done next
            return
        # Within a round the bar follows the phase that is furthest on: phases differ in length, and it never goes back.
        self._share = max(self._share, 0.9 * event.done / event.total) if event.kind == "task" and event.total else 0.0
        phase = f"{event.phase} {event.done}/{event.total}" if event.kind == "task" else ""
        under_way = f"round {min(self.round + 1, event.rounds)}/{event.rounds}"
        told = " · ".join(part for part in (under_way, phase, self._accuracy) if part)
        self._bar.update(self._line, total=event.rounds, completed=self.round + self._share, told=told)
