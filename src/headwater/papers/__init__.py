"""Tables and figures of the papers as TOML files, one folder per paper: their runs, printed values and claims.

The first line of a file is a comment with the title that `headwater reproduce` shows.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from headwater.errors import ConfigError, nearest


@lru_cache(maxsize=1)
def names() -> dict[str, str]:
    """Title by name (PAPER/TABLE), in natural order."""
    found: dict[str, str] = {}
    for paper in sorted(files(__name__).iterdir(), key=lambda item: item.name):
        if paper.is_dir():
            for file in sorted(paper.iterdir(), key=lambda item: _natural(item.name)):
                if file.name.endswith(".toml"):
                    name = f"{paper.name}/{file.name.removesuffix('.toml')}"
                    found[name] = title(file.read_text(encoding="utf-8"))
    return found


def title(text: str) -> str:
    """The title of a table: the comment in the first line of its text."""
    first = text.partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def text(name: str) -> str:
    """The TOML text of a table of this package."""
    paper, _, table = name.partition("/")
    return files(__name__).joinpath(paper, f"{table}.toml").read_text(encoding="utf-8")


def meant(source: str) -> list[str]:
    """The tables that a command-line argument stands for.

    Args:
        source: PAPER, PAPER/TABLE or the path of a TOML file.

    Returns:
        Names of tables, or the path.
    """
    known = list(names())
    papers = dict.fromkeys(name.partition("/")[0] for name in known)
    if source in known:
        return [source]
    if source.rstrip("/") in papers:
        return [name for name in known if name.startswith(f"{source.rstrip('/')}/")]
    path = Path(source).expanduser()
    if path.is_file():
        return [source]
    if path.suffix == ".toml":
        raise ConfigError(f"there is no file {source}; give the path of a table's TOML file")
    paper, _, _ = source.partition("/")
    if paper in papers:
        own = [name for name in known if name.startswith(f"{paper}/")]
        tables = ", ".join(name.partition("/")[2] for name in own)
        raise ConfigError(f"{paper} has no table {source!r}{nearest(source, own)} (of {paper} there are: {tables})")
    raise ConfigError(
        f"there is no paper or table called {source!r}{nearest(source, [*papers, *known])} "
        f"(papers: {', '.join(papers)}; a table is PAPER/TABLE, or the path of a TOML file)"
    )


def _natural(name: str) -> tuple[str, int]:
    """Sort key: table2 before table10."""
    stem = name.removesuffix(".toml")
    digits = "".join(letter for letter in stem if letter.isdigit())
    return stem.rstrip("0123456789"), int(digits or 0)
