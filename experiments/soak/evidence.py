"""What a soak writes down: the machine, and obtained.json as a table."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

NAMES = {
    "cut": "link cut for 30 s",
    "slow": "slow and lossy link",
    "address": "a client's address changed",
    "move": "a host restarted at another address",
}


def machine(root: Path, command: str) -> dict[str, Any]:
    """Command, commit, date, machine and versions."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=root).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "tools", "experiments/soak/run.py")
    versions = {name: metadata.version(name) for name in ("headwater", "torch", "flwr")}
    return {
        "command": command,
        "commit": git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "versions": {"python": platform.python_version()} | versions,
    }


def table(found: dict[str, Any]) -> str:
    """obtained.json for reading."""
    lines = [f"`{found['command']}`, {found['date']}, {found['machine']}, commit {found['commit']}.", ""]
    minutes, faults, every = found["seconds"] / 60, found["faults"], found["settings"]["every"]
    lines.append(f"{found['rounds']} rounds in {minutes:.1f} minutes, with {len(faults)} faults ({found['slow']}).")
    lines.append(f"Parties left out of a round: {len(found['left_out'])} lines in the logs of server and hosts.")
    lines += [_outcome(found), ""]
    lines += [
        "| fault | number | its slowest round, median (s) | its slowest round, longest (s) |",
        "|---|---|---|---|",
    ]
    for kind, name in NAMES.items():
        longest = sorted(_longest(found["times"], fault["at"], every) for fault in faults if fault["kind"] == kind)
        if longest:
            lines.append(f"| {name} | {len(longest)} | {longest[len(longest) // 2]:.0f} | {longest[-1]:.0f} |")
    lines += ["", "Memory (MB) and open files of each party, its Flower processes included:", ""]
    lines += ["| party | MB at the start | MB at the end | files at the start | at the end | most files | starts |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for party in [key for key in found["samples"][0] if key not in ("at", "round")] if found["samples"] else ():
        rows = [row[party] for row in found["samples"] if party in row]
        (first, files, _), (last, then, _) = rows[0], rows[-1]
        starts = len({pid for _, _, pid in rows})
        most = max(row[1] for row in rows)
        lines.append(f"| {party} | {first} | {last} | {files} | {then} | {most} | {starts} |")
    return "\n".join(lines) + "\n"


def _outcome(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"It failed: {found['failed']}."
    if (result := found.get("result")) is None:
        return "It has not finished."
    whole = f"After round {result['rounds']}, accuracy {result['accuracy']:.3f}, the model is "
    if result["same"]:
        return f"{whole}the simulation's, bit for bit: `{result['model_sha256']}`."
    why = "which the docs promise: **a fault**" if result["promised"] else "which nobody promises after a loss"
    return f"{whole}not the simulation's, {why}; equal up to round {result['rounds_as_in_the_simulation']}."


def _longest(times: list[list[float]], at: float, every: float) -> float:
    """Seconds that the slowest round took from the beginning of a fault on, before the next fault was due."""
    pairs = pairwise(times)
    return max((then - max(now, at) for (_, now), (_, then) in pairs if then >= at and now <= at + every), default=0.0)
