"""Directories that commands write to: their default names, checks of what is there, and what a run leaves in one.

The same command over several runs carries on in the directory that it had, also with further methods or seeds. With
other settings it gets a new directory, so it never meets a run that it would have to replace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.core.records import parse_json
from headwater.data import TABLES
from headwater.errors import ConfigError, OutputError, UserError
from headwater.training.run_numbers import RUNS, continued

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.training.run_directory import RunDirectory

CONFIG, CHECKPOINTS = "config.toml", "checkpoints"
FILES = (
    "rounds.jsonl",
    "timeline.jsonl",
    "result.json",
    "model.safetensors",
    "model.md",
    "partition.json",
    "report.html",
    "cell.json",  # of a run of a sweep
)
LONGEST = 100  # letters of a method's or data set's name in the name of a directory


def run_stem(config: Config) -> Path:
    """runs/<method>-<data>, to which a number is added; data files are named by the last part of their path."""
    return RUNS / f"{plain_name(config.method)}-{plain_name(config.data.name)}"


def plain_name(name: str) -> str:
    """The name of a method or data set as part of a directory name, cut to `LONGEST` letters."""
    plain = Path(name).name.replace(":", ".")
    for ending in (".npz", *TABLES):
        plain = plain.removesuffix(ending)
    return plain[:LONGEST]


def check_path(out: Path) -> None:
    """Refuse a path that cannot become a directory, before data is read.

    Raises:
        OutputError: if the path or one of its parents is a file.
    """
    for part in (out, *out.parents):
        if part.exists() and not part.is_dir():
            raise OutputError(f"{part} is a file, so results cannot go to {out}; choose another --out")


def claim(out: Path, config: Config, force: bool) -> RunDirectory:
    """Open the directory of a run.

    Args:
        out: the directory.
        config: the configuration of the run.
        force: remove the files of another run there; other files are kept.

    Raises:
        OutputError: if the directory holds another run or foreign files, or `force` and a process writes to it.
    """
    from headwater.config.plain_tables import HEADER
    from headwater.training.run_directory import RunDirectory
    from headwater.training.run_lock import RunLock

    check_path(out)
    file = out / CONFIG
    if file.exists() and not file.read_bytes().startswith(HEADER.splitlines()[0].encode()):
        raise OutputError(f"{file} was not written by a run and is left alone; choose another --out")
    if force and out.is_dir():
        with RunLock(out, force=True):
            clear(out)
    elif not file.exists() and any((out / name).exists() for name in (*FILES, CHECKPOINTS)):
        raise OutputError(
            f"{out} holds parts of a run but no {CONFIG}; choose another --out, or start anew with --force"
        )
    try:
        return RunDirectory(out, config)
    except (ConfigError, UnicodeDecodeError) as error:
        raise OutputError(
            f"{file} cannot be read ({error}); choose another --out, or start anew with --force"
        ) from None


def clear(out: Path) -> None:
    """Remove the files of a run and no others.

    The configuration is removed last, so that an interrupted removal still leaves a run.
    """
    checkpoints = out / CHECKPOINTS
    for folder, pattern in (
        (checkpoints, "round-*.json"),
        (checkpoints, CONFIG),
        (checkpoints, "devices"),
        (checkpoints, ".*.draft"),
        (checkpoints / "values", "*"),
        (out, ".*.draft"),
    ):
        for item in folder.glob(pattern):
            item.unlink()
    for folder in (checkpoints / "values", checkpoints):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for name in (*FILES, CONFIG):
        (out / name).unlink(missing_ok=True)


def write_config(directory: Path, config: Config) -> None:
    """Write the configuration of a run into its directory."""
    from headwater.training.checkpoint import write_whole

    write_whole(directory / CONFIG, config.to_toml())


def stored(directory: Path) -> Config:
    """The configuration of the run in a directory.

    Raises:
        OutputError: if there is no run, or its configuration cannot be read.
    """
    from headwater.config import Config

    file = directory / CONFIG
    if not directory.is_dir():
        raise OutputError(f"there is no directory {directory}; name the directory of a run")
    if not file.is_file():
        raise OutputError(
            f"{directory} holds no {CONFIG}, so it is not the directory of a run; headwater runs {directory} lists "
            "those below it"
        )
    try:
        return Config.from_toml(file.read_text(encoding="utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise OutputError(f"{file} cannot be read ({error}); restore it, or start the run anew") from None


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
