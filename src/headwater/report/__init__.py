"""Reports from run directories: tables, figures and one self-contained HTML page. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headwater.errors import OutputError

__all__ = ["export", "write"]

Dirs = Path | str | Iterable[Path | str]


def write(
    dirs: Dirs,
    out: Path | str,
    *,
    target: float | None = None,
    baseline: str | None = None,
    keys: Sequence[str] | None = None,
) -> Path:
    """Write the HTML page of all runs in and below directories.

    Args:
        dirs: directories of runs or comparisons.
        out: the file; in an existing directory, report.html.
        target: accuracy to count rounds and bytes to; None for the highest that all methods reach.
        baseline: the method that others are compared with, by its label or name; None for the first one.
        keys: the configuration keys of a sweep; None to find them in the configurations.

    Returns:
        The path of the page.
    """
    from headwater.report import page, runs

    out = Path(out)
    whole = page.render(runs.find(dirs), target=target, baseline=baseline, keys=keys)
    return _put(out / "report.html" if out.is_dir() else out, whole)


def export(dirs: Dirs, out_dir: Path | str, *, target: float | None = None, baseline: str | None = None) -> list[Path]:
    """Write the page, the table as CSV and Markdown, and the curves and the split of the first run as PNG.

    Args:
        dirs: directories of runs or comparisons.
        out_dir: directory for the files.
        target: as for `write`.
        baseline: as for `write`.

    Returns:
        The paths of the files.
    """
    from headwater.report import figures, grouping, method_table, method_text, page, runs

    out_dir = Path(out_dir)
    found = runs.find(dirs)
    groups = grouping.group(found).groups
    table = method_table.tabulate(groups, target, baseline)
    written = [
        _put(out_dir / "report.html", page.render(found, target=target, baseline=baseline)),
        _put(out_dir / "summary.csv", method_text.csv_text(table)),
        _put(out_dir / "summary.md", method_text.markdown(table)),
    ]
    with _output_error(out_dir):
        written.append(figures.curves(groups, out_dir / "curves.png"))
        drawn = figures.split(groups[0].runs[0], out_dir / "split.png")
    return [*written, drawn] if drawn else written


def _put(path: Path, words: str) -> Path:
    """Write to a temporary file and move it, so that a browser never reads half a page."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _output_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(words, encoding="utf-8", newline="\n")
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    return path


@contextmanager
def _output_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{str(path)!r} cannot be written ({error.strerror}); choose another --out") from error
