"""Entry point of every child process: `python -m headwater.engines.workers.start MODULE PIPE ARGUMENT...`.

It imports nothing heavy by itself. MODULE is imported while garbage collection is deferred; its function
`open_worker(send, *ARGUMENTS)` returns a `ChildWorker`, which then handles the messages of the parent process, one
after the other. `headwater.engines.workers.process` has the parent's side.

Standard input tells when the parent process has ended, however that happened: nothing is ever written to it, and it is
closed with the parent.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol

from headwater import startup


class ChildWorker(Protocol):
    """What a child process does."""

    def begin(self) -> None:
        """Called once, before the first message."""

    def handle(self, message: Any) -> None:
        """Handle a message. EOFError and OSError mean that the parent is gone."""

    def leave(self) -> None:
        """Clean up after the parent has ended. The process ends afterwards."""


def main() -> NoReturn:
    module, pipe, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    startup.defer_gc()
    imported = importlib.import_module(module)
    startup.freeze_gc()
    os.set_inheritable(int(pipe), False)
    connection = Connection(int(pipe))
    worker: ChildWorker = imported.open_worker(
        lambda message: connection.send_bytes(pickle.dumps(message)),
        *arguments,
    )
    threading.Thread(target=_follow_parent, args=(worker,), daemon=True).start()
    try:
        worker.begin()
        while True:
            worker.handle(pickle.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        _leave(worker)


def _follow_parent(worker: ChildWorker) -> None:
    os.read(0, 1)
    _leave(worker)


def _leave(worker: ChildWorker) -> NoReturn:
    worker.leave()
    os._exit(0)


if __name__ == "__main__":
    main()
