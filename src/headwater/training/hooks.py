"""Calls the callbacks of a run, and turns their exceptions into errors that name them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.callbacks import RECORDERS, Callback, StopRun
from headwater.errors import CallbackError, ConfigError, HeadwaterError, said

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.training.result import Run


class Hooks:
    """The callbacks of one run.

    Args:
        callbacks: called in this order.
        directory: of the run, for messages; None if there is none.
    """

    def __init__(self, callbacks: Sequence[Callback], directory: Path | None) -> None:
        self._callbacks, self._directory = callbacks, directory
        self.stopped = ""  # the name of the callback that asked to stop
        # With one that may stop the run, a round is submitted only when the one before is finished.
        self.may_stop = any(type(each) not in RECORDERS for each in callbacks)

    def run_begin(self, config: Config) -> None:
        for each in self._callbacks:
            self._call(each, "run_begin", config)

    def round_end(self, row: Mapping[str, Any]) -> None:
        for each in self._callbacks:
            try:
                self._call(each, "round_end", copy.deepcopy(dict(row)))
            except StopRun:
                self.stopped = self.stopped or type(each).__name__

    def run_end(self, run: Run) -> None:
        for each in self._callbacks:
            self._call(each, "run_end", run)

    def run_failed(self, error: BaseException) -> None:
        for each in self._callbacks:
            with suppress(Exception):  # the error that ended the run is the one to be seen
                each.run_failed(error)

    def _call(self, callback: Callback, hook: str, argument: Any) -> None:
        try:
            getattr(callback, hook)(argument)
        except (StopRun, HeadwaterError) as error:
            if isinstance(error, StopRun) and hook != "round_end":
                name = type(callback).__name__
                raise CallbackError(f"callback {name}: StopRun was raised in {hook}; raise it in round_end") from error
            raise
        except Exception as error:
            when = f" after round {argument['round']}" if hook == "round_end" else ""
            again = f"; {self._directory} keeps the run: the same call carries on" if self._directory else ""
            raise CallbackError(
                f"callback {type(callback).__name__}: {hook} raised {type(error).__name__}{when}: {said(error)}{again}"
            ) from error


def checked(callbacks: Iterable[Callback] | None) -> tuple[Callback, ...]:
    """The callbacks as a tuple.

    Raises:
        ConfigError: one of them is no callback.
    """
    wanted = "callbacks must be a list of hw.Callback objects, such as callbacks=[hw.callbacks.TensorBoard()]"
    if callbacks is None:
        return ()
    if isinstance(callbacks, str | Mapping | Callback) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"{wanted}, got a {type(callbacks).__name__}")
    found = tuple(callbacks)
    for each in found:
        if isinstance(each, type):
            raise ConfigError(f"{wanted}, got the class {each.__name__}; write {each.__name__}()")
        if not isinstance(each, Callback):
            raise ConfigError(f"{wanted}, got a {type(each).__name__} in it; derive its class from hw.Callback")
    return found
