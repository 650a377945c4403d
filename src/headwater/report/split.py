"""Who holds what: clients by classes, a dot's area by the number of samples, sectors apart."""

from __future__ import annotations

from statistics import median

from headwater.report.holdings import Holding
from headwater.report.numbers import count
from headwater.report.runs import RunRecord
from headwater.report.svg import card, cut, esc, pct, picture, px, rule, text

NARROW = 280  # width of a drawing area on a telephone
WIDE = 45  # a split of more columns takes the whole width of the page
THIN = 9  # a client never gets fewer pixels; the box scrolls instead


class _Layout:
    """Places of columns and rows; between two sectors there is a gap as wide as a client."""

    def __init__(self, held: Holding) -> None:
        self.held = held
        self.units = len(held.names) + len(set(held.sectors)) - 1
        jumps = [at > 0 and held.sectors[at] != held.sectors[at - 1] for at in range(len(held.names))]
        self.places = [(at + sum(jumps[: at + 1]) + 0.5) / self.units for at in range(len(held.names))]
        self.least = THIN * self.units if THIN * self.units > NARROW else 0
        self.step = min(26.0, max(6.0, 330 / len(held.classes)))
        self.height = self.step * len(held.classes)
        self.column = max(self.least, NARROW) / self.units  # in pixels, on the narrowest screen
        self.numbered = held.by_client and len(held.names) <= 60

    def level(self, row: int) -> float:
        return (row + 0.5) * self.step


def card_of(run: RunRecord, ident: str, heading: str, *, tall: bool = False) -> str:
    """The figure of a run's split, or nothing when the run kept none. `tall`: beside two others if it is narrow."""
    held = Holding.of(run.partition)
    if held is None:
        return ""
    lay = _Layout(held)
    width = min(14, max(map(len, held.classes)))
    totals = [sum(row) for row in held.counts]
    sectors = len(set(held.sectors))
    each = "client" if held.by_client else "sector"
    some = f"the first {count(held.counted[0])} of {count(held.counted[1])} clients" if held.counted else ""
    clients = some or _many(len(totals), "client")
    who = f"{clients} in {_many(sectors, 'sector')}" if held.by_client else _many(sectors, "sector")
    told = (
        f"{who}, {_many(len(held.classes), 'class')}; samples a {each}: "
        f"{count(min(totals))} to {count(max(totals))}, median {count(median(totals))}."
    )
    note = f"{esc(told)} A column is a {each}, a row a class; the largest dot is {count(_largest(held))} samples."
    if not held.by_client:
        note += " There are too many clients to draw each one."
    if some:
        note += f" Counted are {some}; they draw from one pool and may share samples."
    drawing = picture(
        f'<g aria-hidden="true">{_sectors(lay)}{_rows(lay, width)}</g><g class="amount">{_dots(lay)}</g>',
        ident=ident,
        title=heading,
        desc=told,
        height=lay.height,
        pad=(8, 14, 46 if lay.numbered else 30, 14 + int(7.2 * width)),
        least=lay.least,
    )
    return card(heading, drawing, note, kind="span" if lay.units > WIDE else "tall" if tall else "")


def _dots(lay: _Layout) -> str:
    held, largest = lay.held, _largest(lay.held)
    radius = max(2.0, min(lay.step, 1.3 * lay.column) / 2)
    parts = []
    for at, row in enumerate(held.counts):
        place = held.called("sector", held.sectors[at])
        who = f"{held.called('client', int(held.names[at]))}, {place}" if held.by_client else place
        for c, value in enumerate(row):
            if value > 0:
                r = max(0.9, radius * (value / largest) ** 0.5)
                told = esc(f"{who}: {count(value)} of {held.classes[c]}")
                at_point = f'cx="{pct(lay.places[at])}" cy="{px(lay.level(c))}"'
                parts.append(f'<circle {at_point} r="{r:.2f}"><title>{told}</title></circle>')
    return "".join(parts)


def _rows(lay: _Layout, width: int) -> str:
    every = max(1, round(14 / lay.step + 0.49))
    heights = [lay.level(c) for c in range(len(lay.held.classes)) if lay.step >= 10]  # closer lines would only be noise
    lines = [rule("0", at, "100%", at, "grid") for at in heights]
    names = [
        text("0", lay.level(c) + 4, cut(name, width), anchor="end", dx=-8)
        for c, name in enumerate(lay.held.classes)
        if c % every == 0
    ]
    return "".join(lines + names)


def _sectors(lay: _Layout) -> str:
    """A shade behind each sector, its name below, and as many client numbers as there is room for."""
    parts = []
    for sector in dict.fromkeys(lay.held.sectors):
        inside = [at for at, own in enumerate(lay.held.sectors) if own == sector]
        first, last = (lay.places[inside[0]] - 0.5 / lay.units, lay.places[inside[-1]] + 0.5 / lay.units)
        parts.append(
            f'<rect class="stripe" x="{pct(first)}" y="0" width="{pct(last - first)}" height="{px(lay.height)}"/>'
        )
        room = lay.column * len(inside)
        name = cut(lay.held.called("sector", sector), int(room / 6)) if room > 54 else f"s{sector}" if room > 14 else ""
        parts.append(
            text(pct((first + last) / 2), lay.height + (38 if lay.numbered else 20), name, anchor="middle", kind="axis")
        )
        if lay.numbered:
            every = max(1, round(20 / lay.column + 0.4))
            parts += [
                text(pct(lay.places[at]), lay.height + 18, lay.held.names[at], anchor="middle")
                for at in inside[::every]
            ]
    return "".join(parts)


def _largest(held: Holding) -> float:
    return max((value for row in held.counts for value in row), default=0.0) or 1.0


def _many(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"
