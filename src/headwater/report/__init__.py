"""Reports from run directories: tables, figures and one self-contained page. Never touches a live run, nor torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.errors import OutputError

__all__ = ["export", "write"]

Dirs = Path | str | Iterable[Path | str]


def write(dirs: Dirs, out: Path | str, *, target: float | None = None) -> Path:
    """The page of all runs in and below the directories; into a directory it goes as report.html. Returns its path."""
    from headwater.report import page, runs

    out = Path(out)
    return _put(out / "report.html" if out.is_dir() else out, page.render(runs.find(dirs), target=target))


def export(dirs: Dirs, out_dir: Path | str, *, target: float | None = None) -> list[Path]:
    """The page, the table as CSV and as Markdown, the curves and the first run's split as PNG. Returns the paths."""
    from headwater.report import figures, groups, page, runs, tables

    out_dir = Path(out_dir)
    found = runs.find(dirs)
    kept = groups.group(found).groups
    summary = tables.summary(kept, target)
    written = [
        _put(out_dir / "report.html", page.render(found, target=target)),
        _put(out_dir / "summary.csv", tables.csv_text(summary)),
        _put(out_dir / "summary.md", tables.markdown(summary)),
    ]
    with _sentence(out_dir):
        written.append(figures.curves(kept, out_dir / "curves.png"))
        drawn = figures.split(kept[0].runs[0], out_dir / "split.png")
    return [*written, drawn] if drawn else written


def _put(path: Path, words: str) -> Path:
    """Written beside its place and moved there, so that a browser never meets half a page."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(words, encoding="utf-8", newline="\n")
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    return path


@contextmanager
def _sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{str(path)!r} cannot be written ({error.strerror}); choose another --out") from error
