"""A worker process that trains cells: the child's side, see `headwater.engines.workers.start`.

While it trains it can be interrupted by a signal of the parent process; the run then saves its last state, as any run
does. At all other times it ignores that signal.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater import __version__
from headwater.algorithms import REFERENCE
from headwater.config import Config
from headwater.config.fields import plain
from headwater.config.sections import DataConfig
from headwater.data.loading import keep, load, open_data, options_for
from headwater.errors import AbsentData, HeadwaterError, UserError
from headwater.sweep import CELL_FILE, CellFile, CellOutcome, DataSummary
from headwater.training.checkpoint import write_whole
from headwater.training.experiment import Experiment, prepare
from headwater.training.loop import Event, train
from headwater.training.remarks import same_as
from headwater.training.run_directory import RunDirectory

DATASETS_KEPT = 4  # data sets that stay in memory
REPORT_EVERY = 0.2  # seconds from one report of progress to the next
Send = Callable[[tuple[Any, ...]], None]


class CellWorker:
    """Answers the requests ("train", tree, path) and ("measure", section, reference) with (kind, result).

    While it trains it also sends ("training",) once and ("round", done, rounds) now and then.
    """

    def __init__(self, send: Send) -> None:
        self._send = send

    def begin(self) -> None:
        keep(DATASETS_KEPT)

    def handle(self, message: Any) -> None:
        kind, *arguments = message
        self._send((kind, self._train(*arguments) if kind == "train" else _measure(*arguments)))

    def leave(self) -> None:
        """Nothing to do: a run's directory can be continued whenever its process ends."""

    def _train(self, tree: dict[str, Any], path: Path) -> CellOutcome:
        """Train one cell, or continue it."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._send(("training",))
            self._run(tree, path)
            return CellOutcome()
        except UserError as error:
            return CellOutcome(str(error))
        except KeyboardInterrupt:
            os._exit(130)
        except HeadwaterError as error:
            return CellOutcome(str(error), ours=True)
        except Exception as error:
            if os.environ.get("HEADWATER_DEBUG"):
                traceback.print_exc()
            return CellOutcome(f"{type(error).__name__}: {error}", ours=True)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _run(self, tree: dict[str, Any], path: Path) -> None:
        config = Config(**tree)
        experiment = prepare(config)
        directory = RunDirectory(path, experiment.config)
        write_whole(path / CELL_FILE, CellFile(__version__, plain(config.tree()), facts_of(experiment)).text())
        if directory.result is not None:
            return
        last = 0.0

        def watch(event: Event) -> None:
            nonlocal last
            if event.kind in ("start", "round") and time.monotonic() > last + REPORT_EVERY:
                last = time.monotonic()
                self._send(("round", event.round, event.rounds))

        train(experiment, out=path, watch=watch)


def open_worker(send: Send) -> CellWorker:
    """Called by `headwater.engines.workers.start` in the new process."""
    return CellWorker(send)


def _measure(section: dict[str, Any], reference: bool) -> DataSummary:
    """Read the data that a section names, as the clients' data or as a reference set for other data."""
    config = DataConfig(**section)
    try:
        if reference:
            folder = Path(config.dir) if config.dir else None
            data = load(config.reference, folder, options_for(config.reference, config.options))
        else:
            data = open_data(config)
    except AbsentData as error:
        return DataSummary(absent=str(error))
    except UserError as error:
        return DataSummary(wrong=str(error))
    return DataSummary(len(data), data.test_size, data.shape, data.classes, data.tokens)


def facts_of(experiment: Experiment) -> dict[str, Any]:
    """Facts about a run that its result does not hold, for a paper's table.

    Returns:
        `parameters_held`: parameters of all models that a client holds while it trains. `public_samples`: inputs that
        all parties know and that the method learns from. `same_as`: the other method that gives the same
        result on the run's split, and why, if there is one.
    """
    method = experiment.method
    added = [spec.count() for name, spec in experiment.models.items() if name not in experiment.tree.archs]
    return {
        "parameters_held": (1 + method.reference_models()) * experiment.model.count() + sum(added),
        "public_samples": len(experiment.split.reference) if REFERENCE in method.INFO.needs else 0,
        **({"same_as": [*other]} if (other := same_as(experiment)) else {}),
    }
