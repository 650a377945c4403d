"""Building blocks of charts as inline SVG that stretches without shrinking its text.

A chart that is scaled as a whole has unreadable labels on a narrow screen. Here only the drawing area stretches:
horizontal positions are percentages, vertical ones are pixels, and curves are drawn in an inner svg element that is
scaled horizontally while its strokes keep their width. Labels lie outside the drawing area, in the padding of its box.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.report.numbers import cover, plain

WIDE = 1000  # units across the inner svg element
PHONE = 280  # width in pixels of a drawing area on a phone


@dataclass(frozen=True)
class Axis:
    """A range, its ticks (value and text), and a title with the unit."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    title: str
    log: bool = False

    def share(self, value: float) -> float:
        """Position of a value from 0 (low) to 1 (high)."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def accuracy_axis(low: float, high: float) -> Axis:
    """An axis in per cent with round ends at or outside `low` and `high`, at least five points long."""
    spare = max(0.0, 0.05 - (high - low)) / 2  # on a shorter axis, noise would fill the whole height
    marks = [mark for mark in cover(100 * (low - spare), 100 * (high + spare)) if -1e-9 <= mark <= 100 + 1e-9]
    return Axis(marks[0] / 100, marks[-1] / 100, tuple((mark / 100, plain(mark)) for mark in marks), "Accuracy, %")


def esc(value: object) -> str:
    """Escape text for HTML; control characters become a replacement character."""
    return html.escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", "\ufffd", str(value)), quote=True)


def script_json(value: Any) -> str:
    """JSON for a script element, escaped so that no text in it can end the element."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def cut(text: str, most: int) -> str:
    """Shorten text to at most `most` characters, with an ellipsis."""
    return text if len(text) <= most else f"{text[: max(most - 1, 1)].rstrip()}…"


def pct(share: float) -> str:
    return f"{100 * share:.2f}%"


def px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def text(x: str, y: float, words: str, *, anchor: str = "start", kind: str = "tick", dx: float = 0) -> str:
    shift = f' dx="{px(dx)}"' if dx else ""
    return f'<text class="{kind}" x="{x}" y="{px(y)}" text-anchor="{anchor}"{shift}>{esc(words)}</text>'


def rule(x1: str, y1: float, x2: str, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{px(y1)}" x2="{x2}" y2="{px(y2)}"/>'


def picture(
    body: str,
    *,
    ident: str,
    title: str,
    desc: str,
    height: float,
    pad: tuple[int, int, int, int],
    least: int = 0,
    kind: str = "",
) -> str:
    """The box of a chart: padding for labels, and the stretching SVG in it.

    Args:
        body: SVG of the drawing area.
        ident: prefix of the ids of title and description.
        title: title for screen readers.
        desc: description for screen readers.
        height: of the drawing area, in pixels.
        pad: pixels above, right of, below and left of the drawing area.
        least: least width of the drawing area in pixels; it scrolls on a narrower screen.
        kind: further CSS classes.
    """
    top, right, bottom, left = pad
    style = f"--top:{top}px;--right:{right}px;--bottom:{bottom}px;--left:{left}px"
    if least:
        style += f";--least:{least + left + right}px"
    return (
        f'<div class="scroll{" wide" if least else ""}"><div class="plot {kind}" style="{style}">'
        f'<svg role="img" aria-labelledby="{ident}-t {ident}-d" width="100%" height="{px(height)}">'
        f'<title id="{ident}-t">{esc(title)}</title><desc id="{ident}-d">{esc(desc)}</desc>{body}</svg></div></div>'
    )


def stretch(body: str, height: float) -> str:
    """The inner svg element for paths: WIDE units across, pixels down."""
    return (
        f'<svg class="inner" width="100%" height="{px(height)}" viewBox="0 0 {WIDE} {px(height)}" '
        f'preserveAspectRatio="none">{body}</svg>'
    )


def axes(x: Axis, y: Axis | None, height: float, *, left: int) -> str:
    """Grid, ticks and titles; the title of the vertical axis is above it, so that it need not be rotated."""
    parts = []
    if y is not None:
        for value, words in y.ticks:
            at = height * (1 - y.share(value))
            parts += [rule("0", at, "100%", at, "grid"), text("0", at + 4, words, anchor="end", dx=-8)]
        parts.append(text("0", -14, y.title, kind="axis", dx=-left))
    for value, words in x.ticks:
        place = pct(x.share(value))
        top, kind = (0.0, "grid") if y is None else (height, "mark")
        parts += [rule(place, top, place, height + 5, kind), text(place, height + 20, words, anchor="middle")]
    parts += [
        rule("0", height, "100%", height, "base"),
        text("50%", height + 40, x.title, anchor="middle", kind="axis"),
    ]
    return f'<g aria-hidden="true">{"".join(parts)}</g>'


def spread_labels(labels: Sequence[tuple[float, float, float]], height: float, gap: float = 14) -> list[float]:
    """Vertical positions at which labels do not overlap; their order is kept.

    Args:
        labels: left edge, right edge and preferred height of each.
        height: of the chart, in pixels.
        gap: least distance between two labels, in pixels.
    """
    found = [wish for _, _, wish in labels]
    for cluster in _touching(labels):
        order = sorted(cluster, key=lambda at: labels[at][2])
        blocks: list[list[float]] = []  # [height of the first label, number of labels]; overlapping blocks are merged
        for at in order:
            blocks.append([labels[at][2], 1])
            while len(blocks) > 1 and blocks[-2][0] + blocks[-2][1] * gap > blocks[-1][0]:
                start, count = blocks.pop()
                first, before = blocks[-1]
                blocks[-1] = [(first * before + (start - before * gap) * count) / (before + count), before + count]
        spots = [start + step * gap for start, count in blocks for step in range(int(count))]
        for step in range(len(spots)):  # keep labels inside the chart: first at the top, then at the bottom
            spots[step] = max(spots[step], 4 + step * gap)
        for step in range(len(spots)):
            spots[-1 - step] = min(spots[-1 - step], height - 2 - step * gap)
        for at, spot in zip(order, spots, strict=True):
            found[at] = spot
    return found


def _touching(labels: Sequence[tuple[float, float, float]]) -> list[list[int]]:
    """Groups of labels whose widths overlap, directly or through others."""
    clusters: list[list[int]] = []
    reach = -math.inf
    for at in sorted(range(len(labels)), key=lambda index: labels[index][0]):
        if labels[at][0] >= reach or not clusters:
            clusters.append([])
        clusters[-1].append(at)
        reach = max(reach, labels[at][1])
    return clusters


def card(heading: str, inner: str, note: str = "", *, kind: str = "", level: int = 3) -> str:
    """A figure with a heading and, below it, a note (HTML) on how to read it."""
    below = f'<p class="note">{note}</p>' if note else ""
    head = f"<figcaption><h{level}>{esc(heading)}</h{level}></figcaption>"
    return f'<figure class="card {kind}">{head}{inner}{below}</figure>'
