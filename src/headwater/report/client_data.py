"""Samples by client and class: what partition.json and the runs record, and the figure of a split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from headwater.report.numbers import count, number
from headwater.report.runs import RunRecord
from headwater.report.svg import PHONE, card, cut, esc, pct, picture, px, rule, text

MOST_CLIENTS = 400  # with more clients, or more dots, the page becomes slow; it then shows sectors
MOST_DOTS = 6000
WIDE = 45  # a split of more columns takes the whole width of the page
THIN = 9  # least pixels per client; a larger figure scrolls


@dataclass(frozen=True)
class SampleCounts:
    """Number of samples by column and class. A column is a client, or a sector if there are too many clients."""

    names: list[str]
    sectors: list[int]  # of each column, ascending
    counts: list[list[float]]
    classes: list[str]
    by_client: bool
    counted: tuple[int, int] | None = None  # if not all clients are included: how many, of how many
    called: Callable[[str, int], str] = "{} {}".format  # name of a client or sector by kind and number

    @classmethod
    def of(cls, partition: Mapping[str, Any] | None) -> SampleCounts | None:
        """The counts of a partition.json; None if it is missing or has none."""
        rows = (partition or {}).get("counts")
        if (
            partition is None
            or not isinstance(rows, list)
            or not rows
            or not all(isinstance(row, list) for row in rows)
        ):
            return None
        counts = [[number(value) or 0.0 for value in row] for row in rows]
        classes = class_names(partition.get("classes"), max(map(len, counts)))
        counts = [row + [0.0] * (len(classes) - len(row)) for row in counts]
        known, rest = client_sectors(partition), (_counted(partition.get("counted")), caller(partition))
        sectors = [known.get(client, 0) for client in range(len(counts))]
        order = sorted(range(len(counts)), key=lambda client: (sectors[client], client))
        if len(counts) <= MOST_CLIENTS and sum(value > 0 for row in counts for value in row) <= MOST_DOTS:
            names = [str(at) for at in order]
            return cls(names, [sectors[at] for at in order], [counts[at] for at in order], classes, True, *rest)
        places = sorted(set(sectors))
        inside = [[counts[at] for at in order if sectors[at] == place] for place in places]
        sums = [[sum(column) for column in zip(*rows, strict=True)] for rows in inside]
        return cls([str(place) for place in places], places, sums, classes, False, *rest)

    @property
    def largest(self) -> float:
        return max((value for row in self.counts for value in row), default=0.0) or 1.0


def _counted(value: Any) -> tuple[int, int] | None:
    first, registered = (number(value.get(key)) for key in ("first", "of")) if isinstance(value, dict) else (None, None)
    return None if first is None or registered is None else (int(first), int(registered))


class _PackedSectors(Mapping[int, int]):
    """Client number to sector, for populations too large for a dict."""

    def __init__(self, sectors: tuple[int, ...]) -> None:
        self._sectors = sectors

    def __getitem__(self, client: int) -> int:
        if not 0 <= client < len(self._sectors):
            raise KeyError(client)
        return self._sectors[client]

    def __len__(self) -> int:
        return len(self._sectors)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._sectors)))


def client_sectors(partition: Mapping[str, Any] | None) -> Mapping[int, int]:
    """The sector of each client that partition.json lists."""
    sectors = (partition or {}).get("sectors")
    if isinstance(sectors, str):
        from headwater.partition.partition import unpack  # imports NumPy, which few reports need

        try:
            return _PackedSectors(unpack(sectors))
        except ValueError:
            return {}
    pairs = enumerate(map(number, sectors)) if isinstance(sectors, list) else ()
    return {client: int(sector) for client, sector in pairs if sector is not None}


def caller(partition: Mapping[str, Any] | None) -> Callable[[str, int], str]:
    """A function that names a client or sector: as the data calls it, else "client 3" or "sector 0"."""
    known = {
        kind: [str(name) for name in names]
        for kind in ("client", "sector")
        if isinstance(names := (partition or {}).get(f"{kind}_names"), list)
    }

    def called(kind: str, at: int) -> str:
        names = known.get(kind, [])
        return f"{kind} {names[at] if 0 <= at < len(names) else at}"

    return called


def class_names(names: Any, size: int) -> list[str]:
    """The names of `size` classes; classes without a name get their number."""
    known = [str(name) for name in names] if isinstance(names, list) else []
    return [known[at] if at < len(known) else str(at) for at in range(size)]


def client_accuracy(run: RunRecord) -> dict[str, float]:
    """The last recorded accuracy per client, without clients that have no data."""
    found = run.last("client_accuracy")
    pairs = found.items() if isinstance(found, dict) else ()
    return {str(name): value for name, raw in pairs if (value := number(raw)) is not None}


class _SplitLayout:
    """Positions of columns and rows; sectors are separated by a gap as wide as a column."""

    def __init__(self, data: SampleCounts) -> None:
        self.data = data
        self.units = len(data.names) + len(set(data.sectors)) - 1
        jumps = [at > 0 and data.sectors[at] != data.sectors[at - 1] for at in range(len(data.names))]
        self.places = [(at + sum(jumps[: at + 1]) + 0.5) / self.units for at in range(len(data.names))]
        self.least = THIN * self.units if THIN * self.units > PHONE else 0
        self.step = min(26.0, max(6.0, 330 / len(data.classes)))
        self.height = self.step * len(data.classes)
        self.column = max(self.least, PHONE) / self.units  # in pixels, on the narrowest screen
        self.numbered = data.by_client and len(data.names) <= 60

    def level(self, row: int) -> float:
        return (row + 0.5) * self.step


def split_card(run: RunRecord, ident: str, heading: str, *, tall: bool = False) -> str:
    """The figure of a run's split: clients by classes, the area of a dot shows the number of samples.

    Args:
        run: the run; without counts the result is empty.
        ident: prefix of the HTML ids.
        heading: title of the card.
        tall: the card may take the height of two cards beside it.
    """
    data = SampleCounts.of(run.partition)
    if data is None:
        return ""
    lay = _SplitLayout(data)
    width = min(14, max(map(len, data.classes)))
    totals = [sum(row) for row in data.counts]
    sectors = len(set(data.sectors))
    each = "client" if data.by_client else "sector"
    some = f"the first {count(data.counted[0])} of {count(data.counted[1])} clients" if data.counted else ""
    clients = some or _many(len(totals), "client")
    who = f"{clients} in {_many(sectors, 'sector')}" if data.by_client else _many(sectors, "sector")
    summary = (
        f"{who}, {_many(len(data.classes), 'class')}; samples per {each}: "
        f"{count(min(totals))} to {count(max(totals))}, median {count(median(totals))}."
    )
    note = f"{esc(summary)} Columns: {each}s; rows: classes; the largest dot is {count(data.largest)} samples."
    if not data.by_client:
        note += " There are too many clients to draw each one."
    if some:
        note += f" Only {some} are counted; they draw from one pool and may share samples."
    drawing = picture(
        f'<g aria-hidden="true">{_sectors(lay)}{_rows(lay, width)}</g><g class="amount">{_dots(lay)}</g>',
        ident=ident,
        title=heading,
        desc=summary,
        height=lay.height,
        pad=(8, 14, 46 if lay.numbered else 30, 14 + int(7.2 * width)),
        least=lay.least,
    )
    return card(heading, drawing, note, kind="span" if lay.units > WIDE else "tall" if tall else "")


def _dots(lay: _SplitLayout) -> str:
    data, largest = lay.data, lay.data.largest
    radius = max(2.0, min(lay.step, 1.3 * lay.column) / 2)
    parts = []
    for at, row in enumerate(data.counts):
        place = data.called("sector", data.sectors[at])
        who = f"{data.called('client', int(data.names[at]))}, {place}" if data.by_client else place
        for c, value in enumerate(row):
            if value > 0:
                r = max(0.9, radius * (value / largest) ** 0.5)
                title = esc(f"{who}: {count(value)} of {data.classes[c]}")
                at_point = f'cx="{pct(lay.places[at])}" cy="{px(lay.level(c))}"'
                parts.append(f'<circle {at_point} r="{r:.2f}"><title>{title}</title></circle>')
    return "".join(parts)


def _rows(lay: _SplitLayout, width: int) -> str:
    every = max(1, round(14 / lay.step + 0.49))
    heights = [lay.level(c) for c in range(len(lay.data.classes)) if lay.step >= 10]  # closer lines would hide the dots
    lines = [rule("0", at, "100%", at, "grid") for at in heights]
    names = [
        text("0", lay.level(c) + 4, cut(name, width), anchor="end", dx=-8)
        for c, name in enumerate(lay.data.classes)
        if c % every == 0
    ]
    return "".join(lines + names)


def _sectors(lay: _SplitLayout) -> str:
    """A background per sector, its name below, and as many client numbers as there is room for."""
    parts = []
    for sector in dict.fromkeys(lay.data.sectors):
        inside = [at for at, own in enumerate(lay.data.sectors) if own == sector]
        first, last = (lay.places[inside[0]] - 0.5 / lay.units, lay.places[inside[-1]] + 0.5 / lay.units)
        parts.append(
            f'<rect class="stripe" x="{pct(first)}" y="0" width="{pct(last - first)}" height="{px(lay.height)}"/>'
        )
        room = lay.column * len(inside)
        name = cut(lay.data.called("sector", sector), int(room / 6)) if room > 54 else f"s{sector}" if room > 14 else ""
        parts.append(
            text(pct((first + last) / 2), lay.height + (38 if lay.numbered else 20), name, anchor="middle", kind="axis")
        )
        if lay.numbered:
            every = max(1, round(20 / lay.column + 0.4))
            parts += [
                text(pct(lay.places[at]), lay.height + 18, lay.data.names[at], anchor="middle")
                for at in inside[::every]
            ]
    return "".join(parts)


def _many(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"
