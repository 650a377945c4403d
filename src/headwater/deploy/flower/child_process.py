"""A Flower child process and the pipe to it: what the party's process and the child need to live and end together."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from headwater.deploy.transport import Message, RawArray

log = logging.getLogger("headwater.deploy")

FIRST, LONGEST = 1.0, 15.0  # seconds before a restart: doubled from the first to the longest
STEADY = 60.0  # seconds after which a process counts as healthy, so that the pause is the first again
LOG_BYTES = 8 << 20  # a larger log is set aside when the process starts
LENGTH = struct.Struct(">Q")

REFUSED = "2004"  # Flower's exit code for a node that was not admitted, for any reason
NOT_ADMITTED = "SuperNode terminated gracefully"  # without an error: the link answered that it does not know the key
WHY_NOT = "its key is not among the members there, it was revoked, or the clocks differ by more than five seconds"
HINT = "; its key is not among the members there, or its last process is still counted as present, for up to a minute"

Frame = tuple[dict[str, Any], Message | None]


class Pipe:
    """One end of the socket pair. A frame is a length, JSON, and the arrays that the JSON describes."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._reader = end.makefile("rb")
        self._lock = threading.Lock()

    def write(self, frame: dict[str, Any], message: Message | None = None) -> None:
        """Send a frame; blocks until it is written. OSError if the other end is closed."""
        parts: tuple[RawArray, ...] = ()
        if message is not None:
            parts = message.parts
            frame = frame | {"head": message.head, "parts": [[p.dtype, p.shape, len(p.data)] for p in parts]}
        text = json.dumps(frame).encode()
        with self._lock:
            self.end.sendall(LENGTH.pack(len(text)) + text)
            for part in parts:
                self.end.sendall(part.data)

    def read(self) -> Frame:
        """The next frame; blocks until there is one. EOFError once the other end is closed."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        frame = json.loads(self._exactly(length))
        if "parts" not in frame:
            return frame, None
        parts = tuple(RawArray(dtype, tuple(shape), self._exactly(size)) for dtype, shape, size in frame.pop("parts"))
        return frame, Message(frame.pop("head"), parts)

    def _exactly(self, size: int) -> bytes:
        data = b""
        with suppress(OSError, ValueError):  # closed at this end
            data = self._reader.read(size)
        if len(data) < size:
            self._reader.close()
            raise EOFError
        return data

    def close(self) -> None:
        """Close this end, which also ends a `read` in another thread."""
        with suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
        self.end.close()


# -- in the party's process


class FlowerProcess:
    """Runs a module in a child process and restarts it, with growing pauses, whenever it ends.

    The child ends by itself when its end of the pipe is closed, and so whenever this process ends.

    Args:
        title: names its log file.
        module: run with `python -m`.
        settings: the first frame that the child gets.
        state: the party's `state/`.
        on_frame: called with every frame from the child, in a thread of this object.
        on_exit: called with the reason whenever the child ends, in the same thread.
    """

    def __init__(
        self,
        title: str,
        module: str,
        settings: dict[str, Any],
        state: Path,
        on_frame: Callable[[dict[str, Any], Message | None], None],
        on_exit: Callable[[str], None],
    ) -> None:
        self.title, self.module, self.settings, self.state = title, module, settings, state
        self.on_frame, self.on_exit = on_frame, on_exit
        self.process: subprocess.Popen[bytes] | None = None
        self._log = state / "logs" / f"{title}.log"
        self._pipe: Pipe | None = None
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        for folder in (state, self._log.parent, state / "flower"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._keep_running, name=title, daemon=True)
        self._thread.start()

    def send(self, frame: dict[str, Any], message: Message | None = None) -> None:
        """Queue a frame without waiting. It is dropped if the child ends first; `on_exit` is called then."""
        self._frames.put((frame, message))

    def close(self) -> None:
        """End the child and wait until it is gone."""
        self._closing.set()
        with self._lock:
            if self._pipe is not None:
                self._pipe.close()
        self._thread.join()

    def _keep_running(self) -> None:
        pause = FIRST
        while not self._closing.is_set():
            began = time.monotonic()
            reason = self._run_once()
            if self._closing.is_set():
                return
            pause = FIRST if time.monotonic() - began > STEADY else pause
            log.warning("%s ended: %s; started again in %.0f s", self.title, reason, pause)
            self.on_exit(reason)
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST)

    def _run_once(self) -> str:
        """Run one child from its start to its end. Returns the reason of its end."""
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
                    env=_environment(self.state, self.settings.get("dial", "")),
                    process_group=0,  # Ctrl-C is for the party, which then ends this one
                )
            pipe = self._pipe = Pipe(ours)
        writer = threading.Thread(target=_write_frames, args=(pipe, frames, self.settings), daemon=True)
        writer.start()
        try:
            while True:
                self.on_frame(*pipe.read())
        except (EOFError, OSError):
            pass
        pipe.close()
        frames.put(None)
        code = _exit_code(process)
        writer.join()
        return _reason(self._log, start, code)


def _write_frames(pipe: Pipe, frames: queue.SimpleQueue[Frame | None], settings: dict[str, Any]) -> None:
    try:
        pipe.write(settings)
        while (frame := frames.get()) is not None:
            pipe.write(*frame)
    except OSError:
        pipe.close()  # the child is gone, which ends the reader too


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child whose pipe was closed; a node takes leave of its link first."""
    try:
        return process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _reason(path: Path, start: int, code: int) -> str:
    """Why a child ended: the last error in its log, or its exit status."""
    with path.open("rb") as out:
        out.seek(max(start, path.stat().st_size - 20_000))
        text = re.sub(r"\x1b\[[0-9;]*m", "", out.read().decode(errors="replace"))
    if not code and NOT_ADMITTED in text:
        return f"the link does not admit it: {WHY_NOT}"
    status = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    if reports := re.findall(r"Exit Code: (\d+)\s*\n((?:.*\S.*\n?){1,3})", text):
        number, lines = reports[-1]
        return f"Flower's exit code {number}, {' '.join(lines.split())}{HINT if f'code: {REFUSED}' in lines else ''}"
    errors = [line.strip() for line in text.splitlines() if re.search(r"error|exception|headwater:", line, re.I)]
    return f"{status}, {errors[-1]}" if errors else f"{status}, see {path}"


def _environment(state: Path, own: str) -> dict[str, str]:
    """Environment of a child: no telemetry, update checks or installations, and no Flower settings of the user. The
    child connects to itself, at its `own` address or on loopback, without a proxy."""
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    no_proxy = ",".join(filter(None, (exempt, "127.0.0.1", "localhost", own.rpartition(":")[0].strip("[]"))))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "FLOWER_"))}
    return inherited | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(state / "flower"),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path if isinstance(path, str)),
        "no_proxy": no_proxy,
        "NO_PROXY": no_proxy,
    }


# -- in the child process


def pipe_to_party(leave: Callable[[], None]) -> tuple[Pipe, dict[str, Any]]:
    """The pipe to the party's process, and the settings that it sends first.

    Args:
        leave: called when the party's process has ended, even if another child of it still holds the pipe open.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        leave()

    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=watch, daemon=True).start()
    return pipe, pipe.read()[0]


def fail(error: BaseException) -> NoReturn:
    """End this process, which the party then restarts: a thread that it cannot do without has failed."""
    traceback.print_exception(error)
    print(f"headwater: {type(error).__name__}: {error}", flush=True)
    os._exit(1)


_leaving = threading.Lock()


def leave_within(seconds: float) -> None:
    """End this process as Flower does, but in bounded time. A second call does nothing: another SIGTERM would end the
    process before it has taken leave of its link."""
    if not _leaving.acquire(blocking=False):
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(0)
