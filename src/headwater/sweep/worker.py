"""A process that trains cells: takes one, says how far it is and how it ended, and so on until nobody listens.

Standard input tells it when the process that started it is gone: nothing ever comes in there. Ctrl-C reaches it as a
signal from that process, once it has said that it trains; the run then keeps its last state, as any run does.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from headwater import startup
from headwater.sweep import ASKED, Asked, Ended, Size

KEPT = 4  # data sets
OFTEN = 0.2  # seconds from one report of progress to the next


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    startup.begin()
    import headwater.training.loop  # noqa: F401
    from headwater.data.loading import keep

    startup.end()
    keep(KEPT)
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    threading.Thread(target=_follow, daemon=True).start()
    try:
        while True:
            kind, *given = pickle.loads(pipe.recv_bytes())
            told = KINDS[kind](*given, lambda *words: pipe.send_bytes(pickle.dumps(words)))
            pipe.send_bytes(pickle.dumps((kind, told)))
    except (EOFError, OSError):
        os._exit(0)


def _follow() -> NoReturn:
    os.read(0, 1)
    os._exit(0)  # a run's directory can be carried on, whenever its process ends


def _train(tree: dict[str, Any], path: Path, say: Callable[..., None]) -> Ended:
    """One cell, from wherever it was left."""
    from headwater.errors import HeadwaterError, UserError

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        say("trains")
        return _run(tree, path, say)
    except UserError as error:
        return Ended(str(error))
    except KeyboardInterrupt:
        os._exit(130)
    except HeadwaterError as error:
        return Ended(str(error), ours=True)
    except Exception as error:
        if os.environ.get("HEADWATER_DEBUG"):
            import traceback

            traceback.print_exc()
        return Ended(f"{type(error).__name__}: {error}", ours=True)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(tree: dict[str, Any], path: Path, say: Callable[..., None]) -> Ended:
    from headwater import __version__
    from headwater.config import Config
    from headwater.config.fields import plain
    from headwater.sweep.facts import facts_of
    from headwater.training.checkpoint import write_whole
    from headwater.training.experiment import prepare
    from headwater.training.loop import Event, train
    from headwater.training.run_directory import RunDirectory

    config = Config(**tree)
    experiment = prepare(config)
    directory = RunDirectory(path, experiment.config)
    write_whole(path / ASKED, Asked(__version__, plain(config.tree()), facts_of(experiment)).text())
    if directory.result is not None:
        return Ended()
    last = 0.0

    def watch(event: Event) -> None:
        nonlocal last
        if event.kind in ("start", "round") and time.monotonic() > last + OFTEN:
            last = time.monotonic()
            say("round", event.round, event.rounds)

    train(experiment, out=path, watch=watch)
    return Ended()


def _measure(section: dict[str, Any], reference: bool, say: Callable[..., None]) -> Size:
    """What there is to know of the data that a section names, as the clients' or as a reference set for other data."""
    from headwater.config.sections import DataConfig
    from headwater.data.loading import like, load, open_data
    from headwater.errors import AbsentData, UserError

    wanted = DataConfig(**section)
    try:
        if reference:
            folder = Path(wanted.dir) if wanted.dir else None
            data = load(wanted.reference, folder, like(wanted.reference, wanted.options))
        else:
            data = open_data(wanted)
    except AbsentData as error:
        return Size(absent=str(error))
    except UserError as error:
        return Size(wrong=str(error))
    return Size(len(data), data.test_size, data.shape, data.classes, data.tokens)


KINDS: dict[str, Callable[..., Any]] = {"train": _train, "measure": _measure}

if __name__ == "__main__":
    main()
