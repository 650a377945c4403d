"""Directories that number themselves: runs/fedhead-digits-001, -002, … and the link runs/latest to the newest run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

RUNS, LATEST = Path("runs"), "latest"
DIGITS = 3  # at least
MOST_TRIES = 10_000


def numbered(stem: Path, fill: Callable[[Path], None] | None = None) -> Path:
    """Create the directory with the next number and return it.

    Of processes that do this at the same time, each gets another number.

    Args:
        stem: path without the number.
        fill: writes into the new directory. It gets its final name only afterwards, so it is never seen without this.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    draft = stem.with_name(f".{stem.name}.{os.getpid()}.draft")
    if fill is not None:
        shutil.rmtree(draft, ignore_errors=True)  # a killed process of the same number may have left it
        draft.mkdir()
    try:
        if fill is not None:
            fill(draft)
        first = max(numbers(stem), default=0) + 1
        for number in range(first, first + MOST_TRIES):
            path = stem.with_name(f"{stem.name}-{number:0{DIGITS}}")
            if path.exists():  # a rename would replace an empty directory
                continue
            try:
                path.mkdir() if fill is None else draft.rename(path)
            except OSError:
                if path.exists():  # another process was quicker
                    continue
                raise
            return path
        raise FileExistsError(f"{stem}-{first} and the next {MOST_TRIES} numbers are taken")
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def numbers(stem: Path) -> list[int]:
    """The numbers that are taken, in order."""
    pattern = re.compile(rf"{re.escape(stem.name)}-(\d{{{DIGITS},}})")
    names = [item.name for item in stem.parent.iterdir()] if stem.parent.is_dir() else []
    return sorted(int(found.group(1)) for name in names if (found := pattern.fullmatch(name)))


def continued(stem: Path, fits: Callable[[Path], bool]) -> Path:
    """The newest directory if what it holds belongs to the same work, else a new one with the next number.

    Args:
        stem: path without the number.
        fits: whether the directory may be carried on with.
    """
    taken = numbers(stem)
    newest = stem.with_name(f"{stem.name}-{taken[-1]:0{DIGITS}}") if taken else None
    return newest if newest is not None and newest.is_dir() and fits(newest) else numbered(stem)


def point_latest(path: Path) -> None:
    """Let the link `latest` beside a run's directory point to it. Without links on this system, nothing is done."""
    link = path.with_name(LATEST)
    if link.exists() and not link.is_symlink():
        return  # a user's own directory
    draft = path.with_name(f".{LATEST}.{os.getpid()}.draft")
    try:
        draft.unlink(missing_ok=True)
        draft.symlink_to(path.name, target_is_directory=True)
        draft.replace(link)
    except (OSError, NotImplementedError):
        with suppress(OSError):
            draft.unlink(missing_ok=True)
