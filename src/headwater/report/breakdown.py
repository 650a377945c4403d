"""Accuracy broken down by client (a dot per client, a lane per sector) and by class (the confusion matrix)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from headwater.report import style
from headwater.report.client_data import caller, class_names, client_accuracy, client_sectors
from headwater.report.grouping import MethodRuns
from headwater.report.numbers import count, number, percent
from headwater.report.runs import RunRecord, natural
from headwater.report.svg import PHONE, Axis, accuracy_axis, axes, card, cut, esc, pct, picture, px, rule, text

RADIUS = 4.0
LONGEST = 22  # letters of a sector's name
ALL_TESTED = 100  # with more clients, a run tests a fixed sample of them
Matrix = list[list[float]]


def client_axis(groups: Sequence[MethodRuns]) -> Axis | None:
    """The accuracy axis shared by all methods; None if no run has accuracies per client."""
    values = [value for group in groups for value in client_accuracy(group.runs[0]).values()]
    return accuracy_axis(min(values), max(values)) if values else None


def clients_card(group: MethodRuns, ident: str, x: Axis, *, few: bool, kind: str = "") -> str:
    """Accuracy by client in a method's first run; empty if it was not recorded.

    Args:
        group: the method.
        ident: prefix of the HTML ids.
        x: the axis, from `client_axis`.
        few: lanes are higher, as there is room for them.
        kind: further CSS classes of the card.
    """
    run = group.runs[0]
    lanes = _lanes(run)
    if not lanes:
        return ""
    names = sorted(lanes, key=natural)
    lane = min(130.0, max(34.0, 260 / len(names))) if few else 34.0
    marks, dots = [], []
    for at, name in enumerate(names):
        middle = (at + 0.5) * lane
        marks.append(text("0", middle + 4, cut(name, LONGEST), anchor="end", dx=-10))
        if at:
            marks.append(rule("0", at * lane, "100%", at * lane, "base"))
        dots.append(_lane(name, lanes[name], x, middle, lane))
    left = 22 + int(7 * min(LONGEST, max(map(len, names))))
    values = [value for inside in lanes.values() for _, value in inside]
    ends = f"lowest {percent(min(values))}, median {percent(median(values))}, highest {percent(max(values))}"
    registered = len(client_sectors(run.partition))
    sample = f" drawn among {count(registered)}" if len(values) == ALL_TESTED < registered else ""
    summary = f"{len(values)} client{'s' if len(values) > 1 else ''}{sample}: {ends}."
    inner = f'<g aria-hidden="true">{"".join(marks)}</g><g class="amount">{"".join(dots)}</g>'
    heading = f"{group.label}: accuracy by client"
    drawing = picture(
        axes(x, None, lane * len(names), left=left) + inner,
        ident=ident,
        title=heading,
        desc=summary,
        height=lane * len(names),
        pad=(8, 18, 50, left),
    )
    seed = f" Seed {run.seed}." if len(group.runs) > 1 else ""
    note = f"{esc(summary)} Measured on each client's own label distribution; bars are sector means.{seed}"
    return card(heading, drawing, note, kind=kind)


def swarm(shares: Sequence[float], lane: float, width: float = 420.0) -> list[float]:
    """Vertical offsets of the dots of a lane that keep neighbours visible.

    Args:
        shares: horizontal position of each dot, 0 to 1.
        lane: height of the lane in pixels.
        width: width of the lane in pixels.
    """
    most = int(lane / 2 - RADIUS - 1)
    steps = [sign * step for step in range(most + 1) for sign in ((1, -1) if step else (1,))]
    lifts = [0.0] * len(shares)
    placed: list[tuple[float, float]] = []
    for at in sorted(range(len(shares)), key=lambda index: shares[index]):
        own = shares[at] * width
        near = [(x, y) for x, y in placed if own - x < 2 * RADIUS]
        free = (step for step in steps if all((own - x) ** 2 + (step - y) ** 2 >= (1.7 * RADIUS) ** 2 for x, y in near))
        lifts[at] = float(next(free, steps[at % len(steps)]))  # in a crowded lane dots overlap, but are still spread
        placed.append((own, lifts[at]))
    return lifts


def _lanes(run: RunRecord) -> dict[str, list[tuple[str, float]]]:
    """Clients with their accuracy, by sector."""
    found, known, called = client_accuracy(run), client_sectors(run.partition), caller(run.partition)
    lanes: dict[str, list[tuple[str, float]]] = {}
    for name in sorted(found, key=natural):
        digits = name.lstrip("client_- ")
        sector = known.get(int(digits)) if digits.isdecimal() else None
        own = called("client", int(digits)).removeprefix("client ") if digits.isdecimal() else digits
        shown = name if own == digits else f"{name} ({own})"
        lanes.setdefault("clients" if sector is None else called("sector", sector), []).append((shown, found[name]))
    return lanes


def _lane(name: str, inside: Sequence[tuple[str, float]], x: Axis, middle: float, lane: float) -> str:
    lifts = swarm([x.share(value) for _, value in inside], lane)
    dots = [
        f'<circle cx="{pct(x.share(value))}" cy="{px(middle + lift)}" r="{px(RADIUS)}">'
        f"<title>{esc(f'{client}, {name}: {percent(value)}')}</title></circle>"
        for (client, value), lift in zip(inside, lifts, strict=True)
    ]
    mean = fmean(value for _, value in inside)
    at, half = pct(x.share(mean)), 0.38 * lane
    bar = rule(at, middle - half, at, middle + half, "bar")
    return f"<g>{bar}<title>{esc(f'{name}, mean: {percent(mean)}')}</title></g>{''.join(dots)}"


def confusion_card(group: MethodRuns, ident: str) -> str:
    """The confusion matrix summed over the counted seeds; empty if none was recorded."""
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
    mistakes = _mistakes(total, names)
    drawing = picture(
        _cells(total, names, step) + _names(names, step, width, slanted),
        ident=ident,
        title=f"{group.label}: confusion matrix",
        desc=mistakes,
        height=step * size,
        pad=(8, 14, 24 + (int(5.2 * width) if slanted else 4), 14 + int(7.2 * width)),
    )
    seeds = f", {len(found)} seeds together" if len(found) > 1 else ""
    note = f"Rows: true class; columns: prediction; per cent of the row{seeds}. {esc(mistakes)}"
    return card("Confusion matrix", drawing, note)


def _cells(total: Matrix, names: list[str], step: float) -> str:
    size, cells, figures = len(total), [], []
    for r, row in enumerate(_shares(total)):
        for c, share in enumerate(row):
            if share <= 0:
                continue
            depth, strong = style.shade(share)
            title = esc(f"{names[r]} taken for {names[c]}: {count(total[r][c])} ({percent(share)})")
            cells.append(
                f'<rect class="{"right" if r == c else "wrong"}" x="{c}" y="{r}" width="1" height="1" '
                f'fill-opacity="{depth:.3f}"><title>{title}</title></rect>'
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
    down, across = max(1, round(14 / step + 0.49)), max(1, round(size * 22 / PHONE + 0.3))
    parts = [
        text("0", (at + 0.5) * step + 4, cut(names[at], width), anchor="end", dx=-8) for at in range(0, size, down)
    ]
    turn = ' transform="rotate(-45)" text-anchor="end"' if slanted else ' text-anchor="middle"'
    for at in range(0, size, across):
        words = f'<text class="tick"{turn}>{esc(cut(names[at], width))}</text>'
        # A nested svg gives a slanted name an origin in per cent.
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
