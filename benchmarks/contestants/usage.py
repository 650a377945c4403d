"""What a contestant takes of the machine, with all processes that belong to it: CPU time and memory.

A contestant that starts worker processes is judged together with them, and one that lets threads spin pays for that.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
RUNNING = 2  # the kernel's number for the clock that counts how long a process was running


def family() -> list[int]:
    """This process first, then those that it started, those that they started, and so on. In a namespace of its own a
    contestant also gets those whose parents have ended."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [os.getpid()]
    for process in found:
        found += children.get(process, [])
    return found


def _stat(process: int) -> list[str]:
    """The fields after the name, which may hold anything; none if the process is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu(process: int) -> float:
    """Seconds that a process was running, and those of its children that it has seen to their end."""
    try:  # as clock_getcpuclockid(3) has it: times in /proc are in steps of 10 ms, too coarse for a short turn
        running = time.clock_gettime((~process << 3) | RUNNING)
    except OSError:  # gone meanwhile
        return 0.0
    fields = _stat(process)
    return running + (int(fields[13]) + int(fields[14])) * TICK if fields else running


class Meter:
    """Seconds and CPU seconds from `start` to `stop`, without what it takes to look for other processes."""

    def start(self) -> None:
        self._others = self._of_others()
        self._own, self._begun = _cpu(os.getpid()), time.perf_counter()

    def stop(self) -> None:
        self.seconds, own = time.perf_counter() - self._begun, _cpu(os.getpid()) - self._own
        self.cpu = own + max(0.0, self._of_others() - self._others)

    @staticmethod
    def _of_others() -> float:
        return sum(map(_cpu, family()[1:]))


def held() -> dict[str, int]:
    """In MB: `memory`, the most that each process ever held, where a page that several share counts for each of them;
    and `pss`, what they hold now, where such a page counts once."""
    processes = family()
    found = {"memory": _sum(processes, "status", "VmHWM:"), "pss": _sum(processes, "smaps_rollup", "Pss:")}
    return {name: value for name, value in found.items() if value}  # not every kernel tells both


def _sum(processes: list[int], file: str, key: str) -> int:
    return sum(_kilobytes(process, file, key) for process in processes) // 1024


def _kilobytes(process: int, file: str, key: str) -> int:
    try:
        lines = Path(f"/proc/{process}/{file}").read_text().splitlines()
    except OSError:  # gone meanwhile
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)
