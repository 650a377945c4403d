"""Processes of our own, seen from the one that starts them: how they are started, spoken to and ended."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from headwater.core import numerics
from headwater.engines.workers.shared_memory import Reply, Space
from headwater.startup import CBWR, ENVIRONMENT


class Process:
    """Started afresh, never forked: no main module has to be guarded, and no lock can be inherited.

    `module` is run with the number of its end of a pipe before its other arguments.
    """

    def __init__(self, module: str, words: Sequence[str], threads: int) -> None:
        ours, theirs = socket.socketpair()
        self.pipe = Connection(ours.detach())
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), *words],
                stdin=subprocess.PIPE,  # ends when this process does; nothing is ever written
                pass_fds=[theirs.fileno()],
                env=environment(threads),
                process_group=0,  # Ctrl-C is for this process, which then ends the workers
            )

    def send(self, message: bytes) -> None:
        with suppress(OSError):  # it died, which listening will tell
            self.pipe.send_bytes(message)

    def end(self) -> str:
        """See that the process is gone and nothing is left of it; tells how it ended."""
        self.process.kill()
        code = self.process.wait()
        self.pipe.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"


class Hand(Process):
    """A worker of the pool."""

    def __init__(self, number: int, threads: int, space: Space) -> None:
        self.number, self.ready = number, False
        super().__init__(
            "headwater.engines.workers.start", [str(number), str(threads), *map(str, space.folders)], threads
        )

    def hear(self) -> Reply | None:
        """The next reply. Waits; None if the process has died."""
        try:
            reply: Reply = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError, pickle.UnpicklingError):
            return None
        return reply


def environment(threads: int) -> dict[str, str]:
    """What a worker must find when it starts: where modules are, the number of threads, and how to allocate memory.

    Training frees and takes the same large blocks over and over. By default they go back to the system and are zeroed
    page by page when they are taken again; keeping them saved an eighth of the time of a small residual net.
    """
    allocator = {
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that glibc takes
        "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
        "MALLOC_TOP_PAD_": str(64 << 20),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    found = (
        allocator  # under what the user has set
        | ENVIRONMENT
        | os.environ
        | {
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path if isinstance(path, str)),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        }
    )
    if numerics.too_late():  # workers compute as this process does
        found[CBWR] = ""  # what MKL takes for "off"
    return found
