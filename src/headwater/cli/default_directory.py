"""Default directories of commands that make several runs: numbered, and found again by the same command.

The same command carries on in the directory that it had, also with further methods or seeds. With other settings it
gets a new directory, so it never meets a run that it would have to replace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headwater.core.records import parse_json
from headwater.errors import UserError
from headwater.training.run_numbers import continued

ASKED = "asked.json"  # run → hash of its configuration as requested


def directory_for(stem: Path, asked: Mapping[str, str]) -> Path:
    """The newest directory of this name if all that it holds was asked for in the same way, else a new one.

    Args:
        stem: path without the number.
        asked: run → a text that is equal for equal settings.
    """
    from headwater.training.checkpoint import write_whole

    wanted = {run: hashlib.sha256(text.encode()).hexdigest() for run, text in asked.items()}
    path = continued(stem, lambda folder: (known := _known(folder)) is not None and known | wanted == wanted | known)
    text = json.dumps((_known(path) or {}) | wanted, indent=1)
    write_whole(path / ASKED, text)
    return path


@contextmanager
def removed_if_unused(out: Path) -> Iterator[None]:
    """Remove a directory of `directory_for` again if a mistake of the user's ends the command before any run."""
    try:
        yield
    except UserError:
        if (out / ASKED).is_file() and [item.name for item in out.iterdir()] == [ASKED]:
            (out / ASKED).unlink()
            out.rmdir()
        raise


def _known(folder: Path) -> dict[str, str] | None:
    """What was asked for in a directory; None if that is not known."""
    file = folder / ASKED
    try:
        found = parse_json(file.read_text(encoding="utf-8")) if any(folder.iterdir()) else {}
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
