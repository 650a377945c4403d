"""Contestants as processes, and the turns that they take.

Each has a process of its own, which prepares itself outside the timed part and waits idle while others have their
turn; a framework's is started anew for every turn instead, since it does not keep still while it waits.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from environments import Refused, isolated, python_of

from headwater import startup

HERE = Path(__file__).parent
MARK = b"@@"
ALLOCATOR = {  # memory that was given back is used again as it is
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
JAX = {"JAX_TRACEBACK_FILTERING": "off"}  # the last line of an error then says what it was
QUIET = {  # nobody phones home
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Contestant:
    name: str
    module: str  # below contestants
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    environment: str = ""  # of its own; empty: that of the driver
    stays: bool = True  # up between its turns
    turns: int | None = None  # at most; for what takes very long
    limit: float = 3600.0  # seconds for one answer


def tuned(name: str, module: str, *arguments: str, threads: int = 1, **more: Any) -> Contestant:
    """A loop written by hand that has what the hardware asks for in its environment; Headwater sets what it needs."""
    return Contestant(name, module, arguments, ALLOCATOR | {"OMP_NUM_THREADS": str(threads)}, **more)


def framework(name: str, module: str, environment: str, **more: Any) -> Contestant:
    return Contestant(name, module, (), QUIET | {"OMP_NUM_THREADS": "1"}, environment, stays=False, **more)


def outside() -> dict[str, str]:
    """The environment without what importing headwater here has set: others have to do without it."""
    return {name: value for name, value in os.environ.items() if startup.ENVIRONMENT.get(name) != value}


class Process:
    """One contestant while it is up."""

    def __init__(self, contestant: Contestant, pack: Path) -> None:
        self.contestant = contestant
        python, before = sys.executable, []
        if contestant.environment:
            python, before = python_of(contestant.environment), isolated()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [*before, python, "-m", f"contestants.{contestant.module}", str(pack), *contestant.arguments],
            cwd=HERE,
            env=outside() | contestant.variables | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,  # a line that was read ahead would be waited for in vain
            start_new_session=True,
        )
        try:
            self._hear("ready")
        except BaseException:
            self.close()
            raise

    def turn(self) -> dict[str, Any]:
        self._write(b"go\n")
        return self._hear("seconds")

    def _write(self, text: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it died, which `_hear` tells
            self._process.stdin.write(text)

    def _hear(self, wanted: str) -> dict[str, Any]:
        """The next answer that holds this. Waits."""
        assert self._process.stdout is not None
        begun, until = time.monotonic(), time.monotonic() + self.contestant.limit
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while time.monotonic() < until:
                if not ready.select(timeout=10):
                    _waiting(self.contestant.name, time.monotonic() - begun)
                    continue
                line = self._process.stdout.readline()  # a contestant writes whole lines
                if not line:
                    raise Refused(f"{self.contestant.name} is left out because it ended early: {self._last_words()}")
                if line.startswith(MARK):
                    answer: dict[str, Any] = json.loads(line[len(MARK) :])
                    if wanted in answer:
                        return answer
        raise Refused(f"{self.contestant.name} is left out because it gave no answer in {self.contestant.limit:g} s")

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit status {self._process.returncode}"

    def close(self) -> None:
        """By its own id; what it started ends with it."""
        assert self._process.stdin is not None
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()


def _waiting(name: str, seconds: float, out: IO[str] = sys.stderr) -> None:
    if out.isatty():
        print(f"\r  {name}: {seconds:.0f} s ", end="", file=out, flush=True)


def progress(text: str) -> None:
    print(f"\r  {text}", file=sys.stderr, flush=True)


def hold(contestants: list[Contestant], pack: Path, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """The answers of each: one turn each, and so on. Who fails is left out with a sentence."""
    up: dict[str, Process] = {}
    answers: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contestants}
    out: set[str] = set()
    try:
        for repeat in range(repeats):
            for each in contestants:
                if each.name in out or (each.turns is not None and repeat >= each.turns):
                    continue
                try:
                    if each.name not in up:
                        up[each.name] = Process(each, pack)
                    found = up[each.name].turn()
                except Refused as refused:
                    print(f"{refused}", flush=True)
                    out.add(each.name)
                    continue
                finally:
                    if each.name in up and (not each.stays or each.name in out):
                        up.pop(each.name).close()
                answers[each.name].append(found)
                progress(f"{repeat + 1}/{repeats} {each.name}: {found['seconds']:.4g} s")
    finally:
        for process in up.values():
            process.close()
    return {name: found for name, found in answers.items() if found}
