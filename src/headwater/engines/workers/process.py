"""The parent's side of a child process: start, messages, end. `start.py` is the child's side."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from headwater.core import numerics
from headwater.startup import CBWR, ENVIRONMENT


class ChildProcess:
    """A new Python process that exchanges pickled messages with this one.

    It is started afresh, never forked: a user's script needs no `if __name__ == "__main__"`, and no lock is inherited.

    Args:
        module: its function `open_worker` provides what the process does; see `headwater.engines.workers.start`.
        *arguments: of `open_worker`, as text.
        threads: threads of OpenMP and MKL in the process.
    """

    def __init__(self, module: str, *arguments: str, threads: int) -> None:
        ours, theirs = socket.socketpair()
        self.pipe = Connection(ours.detach())
        command = [sys.executable, "-P", "-m", "headwater.engines.workers.start"]
        with theirs:
            self.process = subprocess.Popen(
                [*command, module, str(theirs.fileno()), *arguments],
                stdin=subprocess.PIPE,  # closed when this process ends; nothing is ever written
                pass_fds=[theirs.fileno()],
                env=environment(threads),
                process_group=0,  # Ctrl-C reaches only this process, which then ends its children
            )

    def send(self, message: Any) -> None:
        """Send a message. If the process has died, nothing is sent, and `receive` returns None."""
        data = pickle.dumps(message)
        with suppress(OSError):
            self.pipe.send_bytes(data)

    def receive(self) -> Any:
        """Wait for the next message; None if the process has died."""
        try:
            return pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError, pickle.UnpicklingError):
            return None

    def end(self) -> str:
        """Kill the process and release its resources; return how it ended, for messages."""
        self.process.kill()
        code = self.process.wait()
        self.pipe.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a child process: import path, number of threads, memory allocator.

    Training frees and allocates the same large blocks repeatedly. By default glibc returns them to the system, which
    zeroes every page when they are allocated again. These settings keep the blocks in the process.
    """
    allocator = {
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the maximum of glibc
        "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
        "MALLOC_TOP_PAD_": str(64 << 20),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    variables = (
        allocator  # the user's own settings take precedence
        | ENVIRONMENT
        | os.environ
        | {
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path if isinstance(path, str)),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        }
    )
    if numerics.too_late():  # children must compute with the same kernels as this process
        variables[CBWR] = ""  # "off" for MKL
    return variables
