"""How unevenly a model serves: a dot a client, a lane a sector, a bar at each sector's mean."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from headwater.report.groups import Group
from headwater.report.holdings import caller, client_accuracy, client_sectors
from headwater.report.numbers import count, percent
from headwater.report.runs import RunRecord, natural
from headwater.report.svg import Axis, accuracy_axis, axes, card, cut, esc, pct, picture, px, rule, text

RADIUS = 4.0
LONGEST = 22  # letters of a sector's name
ALL_ASKED = 100  # beyond so many clients a run asks a fixed draw of them


def axis(groups: Sequence[Group]) -> Axis | None:
    """One range of accuracies for all methods, so that their pictures can be compared; None without any values."""
    values = [value for group in groups for value in client_accuracy(group.runs[0]).values()]
    return accuracy_axis(min(values), max(values)) if values else None


def card_of(group: Group, ident: str, x: Axis, *, few: bool, kind: str = "") -> str:
    """The spread in a method's first seed, or nothing when it was not recorded; with few methods lanes are taller."""
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
    drawn = f" drawn among {count(registered)}" if len(values) == ALL_ASKED < registered else ""
    told = f"{len(values)} client{'s' if len(values) > 1 else ''}{drawn}: {ends}."
    inner = f'<g aria-hidden="true">{"".join(marks)}</g><g class="amount">{"".join(dots)}</g>'
    drawing = picture(
        axes(x, None, lane * len(names), left=left) + inner,
        ident=ident,
        title=f"{group.label}: accuracy by client",
        desc=told,
        height=lane * len(names),
        pad=(8, 18, 50, left),
    )
    seed = f" Seed {run.seed}." if len(group.runs) > 1 else ""
    return card(
        f"{group.label}: accuracy by client",
        drawing,
        f"{esc(told)} On each client's own mix of labels; a bar is a sector's mean.{seed}",
        kind=kind,
    )


def swarm(shares: Sequence[float], lane: float, width: float = 420.0) -> list[float]:
    """How far each dot moves off its lane's middle so that neighbours stay visible."""
    most = int(lane / 2 - RADIUS - 1)
    steps = [sign * step for step in range(most + 1) for sign in ((1, -1) if step else (1,))]
    lifts = [0.0] * len(shares)
    placed: list[tuple[float, float]] = []
    for at in sorted(range(len(shares)), key=lambda index: shares[index]):
        own = shares[at] * width
        near = [(x, y) for x, y in placed if own - x < 2 * RADIUS]
        free = (step for step in steps if all((own - x) ** 2 + (step - y) ** 2 >= (1.7 * RADIUS) ** 2 for x, y in near))
        lifts[at] = float(next(free, steps[at % len(steps)]))  # a crowded lane lets dots overlap, but spreads them
        placed.append((own, lifts[at]))
    return lifts


def _lanes(run: RunRecord) -> dict[str, list[tuple[str, float]]]:
    found, known, called = client_accuracy(run), client_sectors(run.partition), caller(run.partition)
    lanes: dict[str, list[tuple[str, float]]] = {}
    for name in sorted(found, key=natural):
        digits = name.lstrip("client_- ")
        sector = known.get(int(digits)) if digits.isdecimal() else None
        own = called("client", int(digits)).removeprefix("client ") if digits.isdecimal() else digits
        told = name if own == digits else f"{name} ({own})"
        lanes.setdefault("clients" if sector is None else called("sector", sector), []).append((told, found[name]))
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
