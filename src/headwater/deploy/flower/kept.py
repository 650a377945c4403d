"""A Flower process, seen from the party that it serves: started, kept running, and gone when the party is."""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater.deploy.flower.frames import Pipe
from headwater.deploy.message import Message

log = logging.getLogger("headwater.deploy")

FIRST, LONGEST = 1.0, 15.0  # seconds before it is started again: doubled from one to the other
STEADY = 60.0  # a process that lived so long starts again at the first
LOG_BYTES = 8 << 20  # a log larger than that is set aside when the process starts

REFUSED = "2004"  # Flower's number for a node that it does not let in, whatever the reason
HINT = "; its key is not among the members there, or its last process is still counted as present, for up to a minute"

Frame = tuple[dict[str, Any], Message | None]


class Kept:
    """Runs `module` in a process, begins with `facts`, and starts it again with patience whenever it ends.

    `hear` gets every frame and `lost` the reason of every end, both in a thread of this object. The process ends by
    itself when its end of the pipe closes, which it does however this process ends.
    """

    def __init__(
        self,
        title: str,
        module: str,
        facts: dict[str, Any],
        state: Path,
        hear: Callable[[dict[str, Any], Message | None], None],
        lost: Callable[[str], None],
    ) -> None:
        self.title, self.module, self.facts, self.state = title, module, facts, state
        self.hear, self.lost = hear, lost
        self.process: subprocess.Popen[bytes] | None = None
        self._log = state / "logs" / f"{title}.log"
        self._pipe: Pipe | None = None
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        for folder in (state, self._log.parent, state / "flower"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._keep, name=title, daemon=True)
        self._thread.start()

    def tell(self, frame: dict[str, Any], message: Message | None = None) -> None:
        """Never waits. What cannot be sent because the process ends is dropped; `lost` tells of it."""
        self._frames.put((frame, message))

    def close(self) -> None:
        """End the process and wait until it is gone."""
        self._closing.set()
        with self._lock:
            if self._pipe is not None:
                self._pipe.close()
        self._thread.join()

    def _keep(self) -> None:
        pause = FIRST
        while not self._closing.is_set():
            began = time.monotonic()
            reason = self._live()
            if self._closing.is_set():
                return
            pause = FIRST if time.monotonic() - began > STEADY else pause
            log.warning("%s ended: %s; started again in %.0f s", self.title, reason, pause)
            self.lost(reason)
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST)

    def _live(self) -> str:
        """One process from its start to its end; tells why it ended."""
        ours, theirs = socket.socketpair()
        frames = self._frames = queue.SimpleQueue()
        with self._lock:
            if self._closing.is_set():
                return "closing"
            if self._log.exists() and self._log.stat().st_size > LOG_BYTES:
                self._log.replace(self._log.with_suffix(".old.log"))
            with theirs, self._log.open("ab") as out:
                start = out.tell()
                process = self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self.module, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=[theirs.fileno()],
                    cwd=self.state,
                    env=environment(self.state, self.facts.get("dial", "")),
                    process_group=0,  # Ctrl-C is for the party, which then ends this one
                )
            pipe = self._pipe = Pipe(ours)
        writer = threading.Thread(target=_write, args=(pipe, frames, self.facts), daemon=True)
        writer.start()
        try:
            while True:
                self.hear(*pipe.read())
        except (EOFError, OSError):
            pass
        pipe.close()
        frames.put(None)
        code = _ended(process)
        writer.join()
        return _why(self._log, start, code)


def _write(pipe: Pipe, frames: queue.SimpleQueue[Frame | None], facts: dict[str, Any]) -> None:
    try:
        pipe.write(facts)
        while (frame := frames.get()) is not None:
            pipe.write(*frame)
    except OSError:
        pipe.close()  # it is gone, which the reader then finds


def _ended(process: subprocess.Popen[bytes]) -> int:
    """It has been told to end, by its pipe; a node says goodbye to its link first."""
    try:
        return process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _why(path: Path, start: int, code: int) -> str:
    """What the process wrote last, which is the sentence that a user needs."""
    with path.open("rb") as out:
        out.seek(max(start, path.stat().st_size - 20_000))
        text = re.sub(r"\x1b\[[0-9;]*m", "", out.read().decode(errors="replace"))
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    if told := re.findall(r"Exit Code: (\d+)\s*\n((?:.*\S.*\n?){1,3})", text):
        number, lines = told[-1]
        return f"Flower's exit code {number}, {' '.join(lines.split())}{HINT if f'code: {REFUSED}' in lines else ''}"
    said = [line.strip() for line in text.splitlines() if re.search(r"error|exception|headwater:", line, re.IGNORECASE)]
    return f"{how}, {said[-1]}" if said else f"{how}, see {path}"


def environment(state: Path, own: str) -> dict[str, str]:
    """Without telemetry, update checks or installations, and with nothing of Flower that the user has set elsewhere.

    A process speaks to itself, at its `own` address or on loopback, past any proxy.
    """
    told = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    near = ",".join(filter(None, (told, "127.0.0.1", "localhost", own.rpartition(":")[0].strip("[]"))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "FLOWER_"))}
    return kept | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(state / "flower"),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path if isinstance(path, str)),
        "no_proxy": near,
        "NO_PROXY": near,
    }
