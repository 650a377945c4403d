"""Small displays for notebooks: tables with a tiny chart, as HTML without scripts, style sheets or other files.

Text and lines take the colour of the page, so that the displays suit light and dark themes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

ACCENT = "#2e8bb5"  # visible on white and on black
FAINT = "opacity:.65"
CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top;white-space:normal"
MOST_ROWS = 60  # clients in the grid


def sectors(number: int) -> str:
    """A number of sectors in words.

    Args:
        number: of sectors.
    """
    return f"{number} sector{'s' * (number != 1)}"


class Svg(str):
    """A finished drawing, which is not escaped."""

    __slots__ = ()


Cell = str | Svg


def card(title: str, rows: Iterable[tuple[str, Cell]], chart: str = "", notes: Iterable[str] = ()) -> str:
    """A title, name and value by line, and a chart below.

    Args:
        title: the first line.
        rows: names and values.
        chart: a drawing.
        notes: sentences at the end.
    """
    name_style = f"{CELL};font-weight:normal;{FAINT}"
    lines = "".join(
        f'<tr><th style="{name_style}">{escape(name)}</th><td style="{CELL}">{_cell(value)}</td></tr>'
        for name, value in rows
    )
    return _frame(title, f'<table style="border:0;margin:0">{lines}</table>{chart}', notes)


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    notes: Iterable[str] = (),
    bold: Iterable[tuple[int, int]] = (),
) -> str:
    """A table with headings.

    Args:
        title: the first line.
        headings: names of the columns.
        rows: cells by row.
        notes: sentences below.
        bold: row and column of cells that stand out.
    """
    strong = set(bold)
    head = "".join(f'<th style="{CELL};{FAINT}">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="{CELL}{";font-weight:bold" * ((at, place) in strong)}">{_cell(value)}</td>'
            for place, value in enumerate(row)
        )
        + "</tr>"
        for at, row in enumerate(rows)
    )
    return _frame(title, f'<table style="border:0;margin:0"><tr>{head}</tr>{body}</table>', notes)


def sparkline(
    values: Sequence[float], what: str, ends: tuple[float, float] | None = None, width: int = 150, height: int = 30
) -> Svg:
    """A line through the values with a dot at the last one.

    Args:
        values: in order.
        what: description of the drawing, for tooltips and screen readers.
        ends: values at the lower and the upper edge, for lines that are compared; None for the lowest and the highest.
        width: in pixels.
        height: in pixels.
    """
    if not values:
        return Svg()
    low, high = ends or (min(values), max(values))
    last = max(1, len(values) - 1)
    low, span = (low, high - low) if high > low else (low - 0.5, 1.0)  # equal values are drawn in the middle
    points = [
        (3 + (width - 6) * at / last, height - 3 - (height - 6) * (v - low) / span) for at, v in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f'<polyline points="{line}" fill="none" stroke="{ACCENT}" stroke-width="1.5"/>'
    x, y = points[-1]
    return _svg(width, height, what, f'{drawn}<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{ACCENT}"/>')


def bar(share: float, what: str, width: int = 120) -> Svg:
    """A horizontal bar.

    Args:
        share: of the width, 0 to 1.
        what: description of the drawing.
        width: of the longest bar in pixels.
    """
    long = max(1.0, width * share)
    return _svg(width, 10, what, f'<rect width="{long:.1f}" height="10" rx="2" fill="{ACCENT}"/>')


def grid(counts: Sequence[Sequence[int]], what: str) -> Svg:
    """One row per client and one column per class; a square is darker the larger its share of the largest count.

    Args:
        counts: samples by client and class.
        what: description of the drawing.
    """
    rows = counts[:MOST_ROWS]
    side, most = (12 if len(rows) <= 30 else 7), max((max(row, default=0) for row in rows), default=0) or 1
    wide = min(side, 480 / max(1, max(map(len, rows), default=1)))
    cells = "".join(
        f'<rect x="{wide * label:.1f}" y="{side * at}" width="{wide * 0.92:.1f}" height="{side - 1}" fill="{ACCENT}" '
        f'fill-opacity="{0.12 + 0.88 * count / most:.2f}"><title>client {at}, class {label}: {count}</title></rect>'
        for at, row in enumerate(rows)
        for label, count in enumerate(row)
        if count
    )
    return _svg(round(wide * max(map(len, rows), default=1)), side * len(rows), what, cells)


def _svg(width: float, height: float, what: str, content: str) -> Svg:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return Svg(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(what)}" '
        f'style="max-width:100%;min-width:min(100%,{min(width, 90):g}px)"><title>{escape(what)}</title>{content}</svg>'
    )


def _cell(value: Cell) -> str:
    return str(value) if isinstance(value, Svg) else escape(value)


def _frame(title: str, content: str, notes: Iterable[str]) -> str:
    below = "".join(f'<div style="font-size:smaller;{FAINT}">{escape(note)}</div>' for note in notes)
    head = f'<div style="font-weight:bold;margin-bottom:4px">{escape(title)}</div>'
    return f'<div style="max-width:100%;overflow-x:auto">{head}{content}{below}</div>'
