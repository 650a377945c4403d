"""`headwater new`: a starter project."""

from __future__ import annotations

import os
import shlex
import shutil
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
    draft = directory.absolute().with_name(f".{directory.absolute().name}.{os.getpid()}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    files = starter.write(draft)
    draft.replace(directory)  # a killed command leaves no half project under this name
    print_lines(*(directory / file.name for file in files))
    print_lines(f"next: cd {shlex.quote(str(directory))} && headwater run experiment.toml")
