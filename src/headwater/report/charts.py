"""Curves: accuracy by round, by bytes, and what distillation did to teacher and student."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from headwater.report import style
from headwater.report.groups import Group
from headwater.report.numbers import log_ticks, number, percent, plain, short_size, size, size_unit, ticks
from headwater.report.runs import Measure
from headwater.report.series import Point, Series, over_seeds
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
USUAL = 440  # width of the drawing area in two columns, for judging whether labels or marks would touch
APART = 13  # pixels between marks; closer ones would hide the curve
INLINE = 6  # so many curves are named where they end; more are named at the right edge
NAMED = 20  # and more than this in the legend only
ROLES = (("teacher_accuracy", "teacher"), ("student_before", "student before"), ("student_after", "student after"))


@dataclass(frozen=True)
class Drawn:
    """How one chart lays out its points."""

    ident: str
    x: Axis
    y: Axis
    place: Callable[[Point], float]
    where: Callable[[Point], str]  # a point's place in words, for the hover box
    family: str  # series of one family are switched on and off together over all charts
    nearest: str  # "x": the hover box lists every curve at that place; "xy": the nearest point only

    def across(self, point: Point) -> float:
        return self.x.share(self.place(point))

    def down(self, value: float) -> float:
        return HEIGHT * (1 - self.y.share(value))

    def group(self, series: Series, inner: str, kind: str) -> str:
        """Parts of one curve, with its colour and the name by which the legend switches it."""
        own = f'data-series="{self.family}{series.slot}"'
        return f'<g class="{kind} {style.classes(series.slot)}" {own}>{inner}</g>'


def by_round(series: Sequence[Series]) -> str:
    """Accuracy against rounds."""
    drawn = _against_rounds("by-round", series, "m")
    return card("Accuracy by round", _chart(drawn, series, "Accuracy on the test set by round"), _band_note(series))


def by_bytes(series: Sequence[Series]) -> str:
    """Accuracy against bytes between server and sectors; a method that sends nothing is a level line."""
    sending = [each for each in series if each.points[-1].bytes > 0]
    still = [each for each in series if each.points[-1].bytes <= 0]
    heading = "Accuracy by bytes sent"
    if not sending:
        return card(heading, '<p class="empty">No bytes between server and sectors were recorded in these runs.</p>')
    drawn = Drawn(
        "by-bytes",
        _traffic(sending),
        _accuracies(series),
        lambda point: point.bytes,
        lambda point: f"round {point.round}, {size(point.bytes)}",
        "m",
        "xy",
    )
    note = "Sent up and down between server and sectors, without the setup."
    if drawn.x.log:
        note += " The axis of bytes is logarithmic."
    if still:
        names = ", ".join(esc(each.label) for each in still)
        note += f" {names}: nothing is sent, so the last accuracy is drawn as a level line."
    told = "Accuracy on the test set by bytes sent between server and sectors"
    return card(heading, _chart(drawn, sending, told, still), note)


def distillation(group: Group, ident: str) -> str:
    """Teacher and student by round, at sectors and at the server; nothing when the method does not distil."""
    if not any(isinstance(row.get("distill"), dict) for run in group.runs for row in run.rows):
        return _taught(group, f"distil-{ident}", "", {key: key for key, _ in ROLES})
    at_sectors = {key: _at(key, server=False) for key, _ in ROLES}
    at_server = {key: _at(key, server=True) for key, _ in ROLES}
    return _taught(group, f"distil-{ident}", " at sectors", at_sectors) + _taught(
        group, f"distil-{ident}s", " at the server", at_server
    )


def _taught(group: Group, ident: str, where: str, measures: Mapping[str, Measure]) -> str:
    found = [Series(name, slot, over_seeds(group.runs, measures[key])) for slot, (key, name) in enumerate(ROLES)]
    series = [each for each in found if each.points]
    if not series:
        return ""
    drawn = _against_rounds(ident, series, f"{ident}-")
    told = f"{group.label}: accuracy of teachers and of students before and after distillation{where}, by round"
    note = f"On the validation set, before and after distillation{where}. {_band_note(series)}"
    return card(f"Teacher and student{where}", _chart(drawn, series, told), note)


def _at(key: str, *, server: bool) -> Callable[[dict[str, Any]], float | None]:
    """The mean of a number that was noted at the server, or at the sectors."""

    def measure(row: dict[str, Any]) -> float | None:
        places = row.get("distill")
        noted = places.items() if isinstance(places, dict) else ()
        values = [
            number(notes.get(key)) for node, notes in noted if (node == "server") == server and isinstance(notes, dict)
        ]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    return measure


def _against_rounds(ident: str, series: Sequence[Series], family: str) -> Drawn:
    rounds, accuracies = _rounds(series), _accuracies(series)
    return Drawn(
        ident, rounds, accuracies, lambda point: point.round, lambda point: f"round {point.round}", family, "x"
    )


def _chart(drawn: Drawn, series: Sequence[Series], told: str, level: Sequence[Series] = ()) -> str:
    """Legend, picture and the values for the hover box."""
    every = [*series, *level]
    names, right = _direct(drawn, series, level)
    body = [
        axes(drawn.x, drawn.y, HEIGHT, left=LEFT),
        stretch("".join(_line(drawn, each) for each in series), HEIGHT),
        *(_level(drawn, each) for each in level),
        *(_marks(drawn, each) for each in series),
        names,
    ]
    ends = [f"{each.label} {percent(each.points[-1].value)} at {drawn.where(each.points[-1])}" for each in every]
    drawing = picture(
        "".join(body),
        ident=drawn.ident,
        title=told,
        desc=f"Last values: {'; '.join(ends)}.",
        height=HEIGHT,
        pad=(30, right, 50, LEFT),
        kind="curves",
    )
    values = script_json({"nearest": drawn.nearest, "series": [_hover(drawn, each) for each in series]})
    return f'{_legend(drawn, every)}{drawing}<script type="application/json" class="hover">{values}</script>'


def _legend(drawn: Drawn, series: Sequence[Series]) -> str:
    """Names with a piece of their line; the script turns them into switches."""
    if len(series) < 2:
        return ""
    line = '<line class="curve" x1="1" y1="6" x2="27" y2="6"/>'
    items = (
        f'<li data-switch="{drawn.family}{each.slot}">'
        f'<svg class="{style.classes(each.slot)}" width="28" height="12" aria-hidden="true">{line}</svg>'
        f"<span>{esc(each.label)}</span></li>"
        for each in series
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _line(drawn: Drawn, series: Series) -> str:
    def places(points: Sequence[Point], height: Callable[[Point], float]) -> list[str]:
        return [f"{px(WIDE * drawn.across(point))},{px(drawn.down(height(point)))}" for point in points]

    parts = []
    if any(point.high > point.low for point in series.points):
        upper = places(series.points, lambda point: point.high)
        lower = places(series.points, lambda point: point.low)[::-1]
        parts.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
    for kind, points in (("curve", series.full), ("curve tail", series.tail)):
        if len(points) > 1:
            parts.append(f'<polyline class="{kind}" points="{" ".join(places(points, lambda point: point.value))}"/>')
    return drawn.group(series, "".join(parts), "series")


def _level(drawn: Drawn, series: Series) -> str:
    at = drawn.down(series.points[-1].value)
    return drawn.group(series, rule("0", at, "100%", at, "curve"), "series level")


def _marks(drawn: Drawn, series: Series) -> str:
    """A mark at each point while there is room, else at the last one only."""
    shares = [drawn.across(point) for point in series.points]
    roomy = all(after - before >= APART / USUAL for before, after in pairwise(shares))
    dots = [
        f'<circle cx="{pct(drawn.across(point))}" cy="{px(drawn.down(point.value))}" r="{radius}">'
        f"<title>{esc(f'{series.label}, {drawn.where(point)}: {_value(point)}')}</title></circle>"
        for point, radius in [*((point, 3) for point in series.points[:-1] if roomy), (series.points[-1], 4)]
    ]
    return drawn.group(series, "".join(dots), "dots")


def _direct(drawn: Drawn, series: Sequence[Series], level: Sequence[Series]) -> tuple[str, int]:
    """Names at the ends of the curves, and how much room they need at the right."""
    every = [*series, *level]
    if not 2 <= len(every) <= NAMED:
        return "", 20
    crowded = len(every) > INLINE
    names = [cut(each.label, 18) for each in every]
    ends = [drawn.across(each.points[-1]) for each in series] + [1.0] * len(level)
    shares = [1.0] * len(every) if crowded else ends
    wishes = [
        (share * USUAL, share * USUAL + 7.6 * len(name) + 24, drawn.down(each.points[-1].value))
        for share, name, each in zip(shares, names, every, strict=True)
    ]
    heights = spread_labels(wishes, HEIGHT)
    parts = []
    for name, share, end, at, each in zip(names, shares, ends, heights, every, strict=True):
        start = drawn.down(each.points[-1].value) if end == share else at  # from the curve's end, or a mere key
        inner = f'<line class="curve" x1="6" y1="{px(start)}" x2="18" y2="{px(at)}"/>'
        inner += f'<text class="name" x="22" y="{px(at + 4)}">{esc(name)}</text>'
        parts.append(drawn.group(each, f'<svg x="{pct(share)}">{inner}</svg>', "direct"))
    room = max(right for _, right, _ in wishes) - USUAL
    return f'<g aria-hidden="true">{"".join(parts)}</g>', int(max(20, room))


def _hover(drawn: Drawn, series: Series) -> dict[str, Any]:
    points = [
        [round(drawn.across(point), 4), round(drawn.down(point.value), 1), drawn.where(point), _value(point)]
        for point in series.points
    ]
    return {
        "id": f"{drawn.family}{series.slot}",
        "name": series.label,
        "look": style.classes(series.slot),
        "points": points,
    }


def _value(point: Point) -> str:
    if point.seeds < 2:
        return percent(point.value)
    return f"{percent(point.value)} ({100 * point.low:.1f} to {100 * point.high:.1f})"


def _band_note(series: Sequence[Series]) -> str:
    told = []
    if any(point.seeds > 1 for each in series for point in each.points):
        told.append("Line: mean over seeds; band: lowest to highest seed.")
    if any(each.tail for each in series):
        told.append("The pale end of a line has fewer seeds, as some runs stopped earlier.")
    return " ".join(told)


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
    if max(ends) > 20 * min(ends):  # a linear axis would press the thrifty methods against its left end
        low = min(point.bytes for each in series for point in each.points if point.bytes > 0) / 1.1
        high = max(ends) * 1.05
        return Axis(low, high, tuple((mark, short_size(mark)) for mark in log_ticks(low, high, 5)), title, True)
    unit, scale = size_unit(max(ends))
    marks = tuple((mark * scale, plain(mark)) for mark in ticks(0, max(ends) / scale, 6))
    return Axis(0, max(ends), marks, f"{title}, {unit}")
