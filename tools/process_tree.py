"""Processes and ports of this machine: what was started below a process, whether it still runs, and waiting for it.

Reads /proc, so it finds processes on Linux only.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

LOWEST, HIGHEST = 20_000, 32_000  # ports that the system does not use for outgoing connections
Process = tuple[int, str]  # process id and start time, since ids are used again


def descendants(pid: int) -> set[Process]:
    """All processes below one."""
    children: dict[int, list[Process]] = {}
    for other in _pids():
        if (fields := _stat(other)) is not None:
            children.setdefault(int(fields[1]), []).append((other, fields[19]))
    found: set[Process] = set()
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found.update(below)
        queue += [other for other, _ in below]
    return found


def alive(process: Process) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    fields = _stat(process[0])
    return fields is not None and fields[19] == process[1] and fields[0] != "Z"


def memory_and_files(pid: int) -> tuple[int, int] | None:
    """Bytes of memory and open files of a process; None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
    return (1024 * kilobytes[0], files) if kilobytes else None


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU time that a process has used; 0 if it has ended."""
    fields = _stat(pid)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def working_below(folder: Path) -> list[int]:
    """Ids of processes whose working directory is below a folder."""
    found = []
    for pid in _pids():
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(f"{folder.resolve()}/"):
                found.append(pid)
        except OSError:
            continue
    return found


def _pids() -> list[int]:
    proc = Path("/proc")
    return [int(path.name) for path in proc.iterdir() if path.name.isdigit()] if proc.is_dir() else []


def _stat(pid: int) -> list[str] | None:
    """The fields after the name in /proc/PID/stat: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    except OSError:
        return None


def until(condition: Callable[[], object], what: str, seconds: float, why: Callable[[], str] = lambda: "") -> None:
    """Wait until a condition holds.

    Args:
        what: is waited for, named in the error.
        seconds: after which TimeoutError is raised.
        why: further text for the error.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}; {why()}")
        time.sleep(0.1)


def free_ports(count: int) -> int:
    """The first of so many consecutive free ports of 127.0.0.1."""
    for first in random.SystemRandom().sample(range(LOWEST, HIGHEST), 200):
        if all(map(_is_free, range(first, first + count))):
            return first
    raise RuntimeError(f"there are no {count} free ports in a row on this machine")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
