"""Who is taken for whom: true classes by predicted ones."""

from __future__ import annotations

from typing import Any

from headwater.report import style
from headwater.report.groups import Group
from headwater.report.holdings import class_names
from headwater.report.numbers import count, number, percent
from headwater.report.svg import card, cut, esc, pct, picture, px, text

NARROW = 280  # width of a drawing area on a telephone
Matrix = list[list[float]]


def card_of(group: Group, ident: str) -> str:
    """The matrix of all counted seeds together, or nothing when none was kept."""
    found = [matrix for run in group.counted if (matrix := _square(run.last("confusion"))) is not None]
    found = [matrix for matrix in found if len(matrix) == len(found[0])]
    if not found:
        return ""
    size = len(found[0])
    total = [[sum(matrix[r][c] for matrix in found) for c in range(size)] for r in range(size)]
    names = class_names(next((run.partition.get("classes") for run in group.runs if run.partition), None), size)
    step = min(34.0, max(4.0, 340 / size))
    width = min(12, max(map(len, names)))
    slanted = max(map(len, names)) > 2
    told = _mistakes(total, names)
    drawing = picture(
        _cells(total, names, step) + _names(names, step, width, slanted),
        ident=ident,
        title=f"{group.label}: confusion matrix",
        desc=told,
        height=step * size,
        pad=(8, 14, 24 + (int(5.2 * width) if slanted else 4), 14 + int(7.2 * width)),
    )
    seeds = f", {len(found)} seeds together" if len(found) > 1 else ""
    return card(
        "Confusion matrix", drawing, f"Rows: true class; columns: prediction; per cent of the row{seeds}. {esc(told)}"
    )


def _cells(total: Matrix, names: list[str], step: float) -> str:
    size, cells, figures = len(total), [], []
    for r, row in enumerate(_shares(total)):
        for c, share in enumerate(row):
            if share <= 0:
                continue
            depth, strong = style.shade(share)
            told = esc(f"{names[r]} taken for {names[c]}: {count(total[r][c])} ({percent(share)})")
            cells.append(
                f'<rect class="{"right" if r == c else "wrong"}" x="{c}" y="{r}" width="1" height="1" '
                f'fill-opacity="{depth:.3f}"><title>{told}</title></rect>'
            )
            if size <= 12 and share >= 0.005:
                kind = "cell deep" if strong else "cell"
                place = pct((c + 0.5) / size)
                figures.append(text(place, (r + 0.5) * step + 4, f"{100 * share:.0f}", anchor="middle", kind=kind))
    inner = f'width="100%" height="{px(step * size)}" viewBox="0 0 {size} {size}" preserveAspectRatio="none"'
    frame = f'<rect class="frame" x="0" y="0" width="100%" height="{px(step * size)}"/>'
    numbers = f'<g class="figures" aria-hidden="true">{"".join(figures)}</g>'
    return f'{frame}<svg class="inner matrix" {inner}>{"".join(cells)}</svg>{numbers}'


def _names(names: list[str], step: float, width: int, slanted: bool) -> str:
    size = len(names)
    down, across = max(1, round(14 / step + 0.49)), max(1, round(size * 22 / NARROW + 0.3))
    parts = [
        text("0", (at + 0.5) * step + 4, cut(names[at], width), anchor="end", dx=-8) for at in range(0, size, down)
    ]
    turn = ' transform="rotate(-45)" text-anchor="end"' if slanted else ' text-anchor="middle"'
    for at in range(0, size, across):
        words = f'<text class="tick"{turn}>{esc(cut(names[at], width))}</text>'
        # a picture of its own gives a slanted name an origin that is a percentage
        parts.append(f'<svg x="{pct((at + 0.5) / size)}" y="{px(step * size + 16)}">{words}</svg>')
    return f'<g aria-hidden="true">{"".join(parts)}</g>'


def _mistakes(total: Matrix, names: list[str]) -> str:
    size, shares = len(total), _shares(total)
    wrong = [(shares[r][c], r, c) for r in range(size) for c in range(size) if r != c and total[r][c]]
    top = [
        f"{names[r]} taken for {names[c]} ({percent(share)})"
        for share, r, c in sorted(wrong, key=lambda each: -each[0])[:3]
    ]
    return f"Most frequent mistakes: {'; '.join(top)}." if top else "No mistakes on the test set."


def _shares(total: Matrix) -> Matrix:
    return [[value / sum(row) if sum(row) else 0.0 for value in row] for row in total]


def _square(value: Any) -> Matrix | None:
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(row, list) and len(row) == len(value) for row in value):
        return None
    return [[number(cell) or 0.0 for cell in row] for row in value]
