"""Result files of this folder: what was found, with command, commit, machine and date."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def stamp(command: str) -> dict[str, Any]:
    """Command, commit, date, machine and versions."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "proof/*.py")
    return {
        "command": command,
        "commit": git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("headwater", "torch", "hypothesis")},
    }


def write(path: Path, found: dict[str, Any]) -> None:
    """Replace a result file as a whole."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(found, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    beside.replace(path)
