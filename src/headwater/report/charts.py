"""Curves of the page: accuracy by round and by bytes; teachers and students before and after distillation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headwater.report import style
from headwater.report.grouping import MethodRuns, Point, Series, over_seeds
from headwater.report.numbers import log_ticks, mean, number, percent, plain, short_size, size, size_unit, ticks
from headwater.report.runs import RowValue
from headwater.report.svg import (
    WIDE,
    Axis,
    accuracy_axis,
    axes,
    card,
    cut,
    esc,
    pct,
    picture,
    px,
    rule,
    script_json,
    spread_labels,
    stretch,
)

HEIGHT = 300
LEFT = 52
USUAL = 440  # assumed width of the drawing area, for deciding whether labels or marks would touch
APART = 13  # least pixels between marks; closer ones would hide the curve
INLINE = 6  # up to so many curves are named where they end, more at the right edge
NAMED = 20  # more than this are named in the legend only
ROLES = (("teacher_accuracy", "teacher"), ("student_before", "student before"), ("student_after", "student after"))


@dataclass(frozen=True)
class ChartLayout:
    """Positions of the points of one chart."""

    ident: str
    x: Axis
    y: Axis
    place: Callable[[Point], float]
    where: Callable[[Point], str]  # text of a point's position, for the hover box
    family: str  # the legend switches series of one family in all charts together
    nearest: str  # "x": the hover box lists every curve at this x; "xy": the nearest point only

    def across(self, point: Point) -> float:
        return self.x.share(self.place(point))

    def down(self, value: float) -> float:
        return HEIGHT * (1 - self.y.share(value))

    def group(self, series: Series, inner: str, kind: str) -> str:
        """An svg group with the curve's colour and the id by which the legend switches it."""
        own = f'data-series="{self.family}{series.slot}"'
        return f'<g class="{kind} {style.classes(series.slot)}" {own}>{inner}</g>'


def by_round(series: Sequence[Series]) -> str:
    """Accuracy against rounds."""
    layout = _against_rounds("by-round", series, "m")
    return card("Accuracy by round", _chart(layout, series, "Accuracy on the test set by round"), _band_note(series))


def by_bytes(series: Sequence[Series]) -> str:
    """Accuracy against bytes between server and sectors; a method that sends nothing is a horizontal line."""
    sending = [each for each in series if each.points[-1].bytes > 0]
    still = [each for each in series if each.points[-1].bytes <= 0]
    heading = "Accuracy by bytes sent"
    if not sending:
        return card(heading, '<p class="empty">No bytes between server and sectors were recorded in these runs.</p>')
    layout = ChartLayout(
        "by-bytes",
        _traffic(sending),
        _accuracies(series),
        lambda point: point.bytes,
        lambda point: f"round {point.round}, {size(point.bytes)}",
        "m",
        "xy",
    )
    note = "Bytes sent up and down between server and sectors, without the setup."
    if layout.x.log:
        note += " The axis of bytes is logarithmic."
    if still:
        names = ", ".join(esc(each.label) for each in still)
        note += f" {names}: nothing is sent, so the last accuracy is drawn as a horizontal line."
    title = "Accuracy on the test set by bytes sent between server and sectors"
    return card(heading, _chart(layout, sending, title, still), note)


def distillation(group: MethodRuns, ident: str) -> str:
    """Teachers and students by round, at sectors and at the server; empty if the method does not distil."""
    if not any(isinstance(row.get("distill"), dict) for run in group.runs for row in run.rows):
        return _distilled(group, f"distil-{ident}", "", {key: key for key, _ in ROLES})
    at_sectors = {key: _at(key, server=False) for key, _ in ROLES}
    at_server = {key: _at(key, server=True) for key, _ in ROLES}
    return _distilled(group, f"distil-{ident}", " at sectors", at_sectors) + _distilled(
        group, f"distil-{ident}s", " at the server", at_server
    )


def _distilled(group: MethodRuns, ident: str, where: str, measures: Mapping[str, RowValue]) -> str:
    found = [Series(name, slot, over_seeds(group.runs, measures[key])) for slot, (key, name) in enumerate(ROLES)]
    series = [each for each in found if each.points]
    if not series:
        return ""
    layout = _against_rounds(ident, series, f"{ident}-")
    title = f"{group.label}: accuracy of teachers and of students before and after distillation{where}, by round"
    note = f"On the validation set, before and after distillation{where}. {_band_note(series)}"
    return card(f"Teacher and student{where}", _chart(layout, series, title), note)


def _at(key: str, *, server: bool) -> Callable[[dict[str, Any]], float | None]:
    """The mean of a recorded value over the sectors, or its value at the server."""

    def measure(row: dict[str, Any]) -> float | None:
        places = row.get("distill")
        nodes = places.items() if isinstance(places, dict) else ()
        return mean(
            number(values.get(key))
            for node, values in nodes
            if (node == "server") == server and isinstance(values, dict)
        )

    return measure


def _against_rounds(ident: str, series: Sequence[Series], family: str) -> ChartLayout:
    rounds, accuracies = _rounds(series), _accuracies(series)
    return ChartLayout(
        ident, rounds, accuracies, lambda point: point.round, lambda point: f"round {point.round}", family, "x"
    )


def _chart(layout: ChartLayout, series: Sequence[Series], title: str, level: Sequence[Series] = ()) -> str:
    """Legend, chart and the values for the hover box."""
    every = [*series, *level]
    names, right = _direct(layout, series, level)
    body = [
        axes(layout.x, layout.y, HEIGHT, left=LEFT),
        stretch("".join(_line(layout, each) for each in series), HEIGHT),
        *(_level(layout, each) for each in level),
        *(_marks(layout, each) for each in series),
        names,
    ]
    ends = [f"{each.label} {percent(each.points[-1].value)} at {layout.where(each.points[-1])}" for each in every]
    drawing = picture(
        "".join(body),
        ident=layout.ident,
        title=title,
        desc=f"Last values: {'; '.join(ends)}.",
        height=HEIGHT,
        pad=(30, right, 50, LEFT),
        kind="curves",
    )
    values = script_json({"nearest": layout.nearest, "series": [_hover(layout, each) for each in series]})
    return f'{_legend(layout, every)}{drawing}<script type="application/json" class="hover">{values}</script>'


def _legend(layout: ChartLayout, series: Sequence[Series]) -> str:
    """Names with a sample of their line; the page's script turns them into switches."""
    if len(series) < 2:
        return ""
    line = '<line class="curve" x1="1" y1="6" x2="27" y2="6"/>'
    items = (
        f'<li data-switch="{layout.family}{each.slot}">'
        f'<svg class="{style.classes(each.slot)}" width="28" height="12" aria-hidden="true">{line}</svg>'
        f"<span>{esc(each.label)}</span></li>"
        for each in series
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _line(layout: ChartLayout, series: Series) -> str:
    def places(points: Sequence[Point], height: Callable[[Point], float]) -> list[str]:
        return [f"{px(WIDE * layout.across(point))},{px(layout.down(height(point)))}" for point in points]

    parts = []
    if any(point.high > point.low for point in series.points):
        upper = places(series.points, lambda point: point.high)
        lower = places(series.points, lambda point: point.low)[::-1]
        parts.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
    for kind, points in (("curve", series.full), ("curve tail", series.tail)):
        if len(points) > 1:
            parts.append(f'<polyline class="{kind}" points="{" ".join(places(points, lambda point: point.value))}"/>')
    return layout.group(series, "".join(parts), "series")


def _level(layout: ChartLayout, series: Series) -> str:
    at = layout.down(series.points[-1].value)
    return layout.group(series, rule("0", at, "100%", at, "curve"), "series level")


def _marks(layout: ChartLayout, series: Series) -> str:
    """A mark at each point if there is room, else at the last one only."""
    shares = [layout.across(point) for point in series.points]
    roomy = all(after - before >= APART / USUAL for before, after in pairwise(shares))
    dots = [
        f'<circle cx="{pct(layout.across(point))}" cy="{px(layout.down(point.value))}" r="{radius}">'
        f"<title>{esc(f'{series.label}, {layout.where(point)}: {_value(point)}')}</title></circle>"
        for point, radius in [*((point, 3) for point in series.points[:-1] if roomy), (series.points[-1], 4)]
    ]
    return layout.group(series, "".join(dots), "dots")


def _direct(layout: ChartLayout, series: Sequence[Series], level: Sequence[Series]) -> tuple[str, int]:
    """Names at the ends of the curves, and the pixels they need at the right."""
    every = [*series, *level]
    if not 2 <= len(every) <= NAMED:
        return "", 20
    crowded = len(every) > INLINE
    names = [cut(each.label, 18) for each in every]
    ends = [layout.across(each.points[-1]) for each in series] + [1.0] * len(level)
    shares = [1.0] * len(every) if crowded else ends
    boxes = [
        (share * USUAL, share * USUAL + 7.6 * len(name) + 24, layout.down(each.points[-1].value))
        for share, name, each in zip(shares, names, every, strict=True)
    ]
    heights = spread_labels(boxes, HEIGHT)
    parts = []
    for name, share, end, at, each in zip(names, shares, ends, heights, every, strict=True):
        # The line before a name starts at the end of its curve, or is only a sample of it.
        start = layout.down(each.points[-1].value) if end == share else at
        inner = f'<line class="curve" x1="6" y1="{px(start)}" x2="18" y2="{px(at)}"/>'
        inner += f'<text class="name" x="22" y="{px(at + 4)}">{esc(name)}</text>'
        parts.append(layout.group(each, f'<svg x="{pct(share)}">{inner}</svg>', "direct"))
    room = max(right for _, right, _ in boxes) - USUAL
    return f'<g aria-hidden="true">{"".join(parts)}</g>', int(max(20, room))


def _hover(layout: ChartLayout, series: Series) -> dict[str, Any]:
    points = [
        [round(layout.across(point), 4), round(layout.down(point.value), 1), layout.where(point), _value(point)]
        for point in series.points
    ]
    return {
        "id": f"{layout.family}{series.slot}",
        "name": series.label,
        "look": style.classes(series.slot),
        "points": points,
    }


def _value(point: Point) -> str:
    if point.seeds < 2:
        return percent(point.value)
    return f"{percent(point.value)} ({100 * point.low:.1f} to {100 * point.high:.1f})"


def _band_note(series: Sequence[Series]) -> str:
    notes = []
    if any(point.seeds > 1 for each in series for point in each.points):
        notes.append("Line: mean over seeds; band: lowest to highest seed.")
    if any(each.tail for each in series):
        notes.append("The pale end of a line is a mean over fewer seeds, as some runs stopped earlier.")
    return " ".join(notes)


def _accuracies(series: Sequence[Series]) -> Axis:
    points = [point for each in series for point in each.points]
    return accuracy_axis(min(point.low for point in points), max(point.high for point in points))


def _rounds(series: Sequence[Series]) -> Axis:
    rounds = [point.round for each in series for point in each.points]
    low, high = min(rounds), max(rounds)
    if low == high:
        return Axis(low - 1, high + 1, ((low, str(low)),), "Round")
    return Axis(low, high, tuple((mark, plain(mark)) for mark in ticks(low, high, 7, whole=True)), "Round")


def _traffic(series: Sequence[Series]) -> Axis:
    ends = [each.points[-1].bytes for each in series]
    title = "Bytes between server and sectors"
    if max(ends) > 20 * min(ends):  # on a linear axis, methods that send little would be pressed against the left end
        low = min(point.bytes for each in series for point in each.points if point.bytes > 0) / 1.1
        high = max(ends) * 1.05
        return Axis(low, high, tuple((mark, short_size(mark)) for mark in log_ticks(low, high, 5)), title, True)
    unit, scale = size_unit(max(ends))
    marks = tuple((mark * scale, plain(mark)) for mark in ticks(0, max(ends) / scale, 6))
    return Axis(0, max(ends), marks, f"{title}, {unit}")
