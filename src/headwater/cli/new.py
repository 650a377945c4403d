"""`headwater new`: a starter project."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.terminal import print_lines
from headwater.errors import OutputError

Folder = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]


def new(directory: Folder) -> None:
    """Write a starter project: own data, model and method, and a configuration that runs as it stands.

    Example: `headwater new mine && cd mine && headwater run experiment.toml`
    """
    from headwater import starter

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise OutputError(f"{directory} exists and is not an empty folder; choose another name")
    directory.mkdir(parents=True, exist_ok=True)
    print_lines(*starter.write(directory))
    print_lines(f"next: cd {shlex.quote(str(directory))} && headwater run experiment.toml")
