"""What a user sees: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headwater.core.records import to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Cell = str | tuple[str, bool]
PLAIN = {"–": "-", "—": "-", "−": "-", "±": "+-", "×": "x", "·": "*", "√": "sqrt", "→": "->", "≤": "<=", "≥": ">="}


def say(text: str) -> None:
    """One line on standard error, as it is: no markup, no wrapping, so that it can be searched and copied."""
    print("headwater:", " ".join(text.split()), file=sys.stderr, flush=True)


def plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """For a terminal that lacks our characters: what is closest to one of them. Bytes of a file's name stay as they
    are."""
    import unicodedata

    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    if 0xDC80 <= ord(sign) <= 0xDCFF:  # a byte that could not be read as text
        return bytes([ord(sign) - 0xDC00]), error.start + 1
    parts = unicodedata.normalize("NFKD", PLAIN.get(sign, sign)).replace("\u2044", "/")
    close, name = parts.encode("ascii", "ignore").decode(), unicodedata.name(sign, "")
    if not close and not unicodedata.combining(sign):
        close = name.rpartition(" ")[2].lower() if name.startswith("GREEK ") else "?"
    return close, error.start + 1


def as_json(value: Any) -> None:
    """Machine output."""
    print(to_json(value, indent=2))


def out() -> Console:
    """Standard output for people. Looked up anew each time, since tests and notebooks change it."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 140)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "", right: Sequence[str] = ()
) -> Table:
    """A plain table; columns named in `right` hold numbers, and a cell may say that it is to stand out."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else _marked(*cell) for cell in row))
    return made


def _marked(text: str, best: bool) -> Text:
    """The best of a column: bold, and with a star for readers without colours."""
    from rich.text import Text

    return Text(f"{text} *", style="bold") if best else Text(text)


def pairs(rows: Iterable[tuple[str, str]], title: str) -> Table:
    """Two columns without headings."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, title=title, title_justify="left", title_style="bold", show_header=False, pad_edge=False)
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, Text(value))
    return made
