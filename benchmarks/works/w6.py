"""Start: what a person waits for before anything happens, everything included."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from record import Claim

from works.base import Inside, Work

TORCH = 'python -c "import torch"'
HELP, LIST, RUN = "headwater --help", "headwater list algorithms", "headwater run, one round on digits"
MODULE = (sys.executable, "-c", "from headwater.cli.app import main; main()")  # as the installed command does


def command() -> list[str]:
    installed = Path(sys.executable).parent / "headwater"
    return [str(installed)] if installed.is_file() else list(MODULE)


def once(name: str, line: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = ["--out", f"{folder}/run"] if name == RUN else []
        subprocess.run([*line, *out], check=True, capture_output=True)


def work(quick: bool) -> Work:
    own = command()
    lines: dict[str, list[str]] = {
        TORCH: [sys.executable, "-c", "import torch"],
        HELP: [*own, "--help"],
        LIST: [*own, "list", "algorithms"],
        RUN: [*own, "run", "--rounds", "1"],
    }
    return Inside(
        "start",
        [],
        lambda path: path,
        TORCH,
        [Claim(0.3, who=HELP), Claim(1.5, (TORCH,), who=RUN, plus=2.0)],
        "seconds",
        2 if quick else 5,
        functions={name: partial(once, name, line) for name, line in lines.items()},
    )
