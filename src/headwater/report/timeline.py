"""Timeline of a run: what each worker did when. Shows how rounds overlap."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.report import style
from headwater.report.figures import add_legend, new_figure
from headwater.report.grouping import MethodRuns
from headwater.report.numbers import cover, duration, number, percent, plain
from headwater.report.runs import RunRecord
from headwater.report.svg import Axis, axes, card, esc, pct, picture, px, text

# Phases with the words of the legend; "" stands for all others.
PHASES = {"train": "training", "distill": "distilling", "evaluate": "evaluating", "": "combining"}
MOST = 300  # tasks in a figure; of a long run, the first rounds are shown
LANE, GAP, THIN = 26.0, 6.0, 15.0  # pixels: a worker's lane, between lanes, a row of round marks
FAINT = 0.45  # opacity of every other round

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Span:
    """One task: its node, worker, start and end."""

    round: int
    task: str
    phase: str  # a key of PHASES
    node: str
    start: float
    end: float
    worker: int

    @property
    def text(self) -> str:
        return (
            f"{self.task} at {self.node}, round {self.round}, worker {self.worker}: {duration(self.end - self.start)}"
        )


def spans_of(rows: Rows) -> list[Span]:
    """Tasks from rows of timeline.jsonl, by start; incomplete rows and those before round 1 are left out."""
    found = []
    for row in rows:
        numbers = [number(row.get(key)) for key in ("round", "start", "end", "worker")]
        if None in numbers:
            continue
        at, start, end, worker = (float(value) for value in numbers if value is not None)
        phase = str(row.get("phase", ""))
        others = int(number(row.get("nodes")) or 1) - 1  # further clients trained in the same task
        node = str(row.get("node", "")) + (f" +{others}" if others > 0 else "")
        where = (str(row.get("task", "")), phase if phase in PHASES else "", node)
        if at >= 1 and end >= start:
            found.append(Span(int(at), *where, start, end, int(worker)))
    return sorted(found, key=lambda span: (span.start, span.worker))


def first_rounds(spans: Sequence[Span], most: int = MOST) -> list[Span]:
    """The first complete rounds with up to `most` tasks, but at least two rounds, so that overlap can be seen."""
    rounds = sorted({span.round for span in spans})
    kept: list[Span] = []
    for place, at in enumerate(rounds):
        more = [span for span in spans if span.round == at]
        if place >= 2 and len(kept) + len(more) > most:
            break
        kept += more
    return sorted(kept, key=lambda span: (span.start, span.worker))


def early(spans: Sequence[Span]) -> tuple[int, int]:
    """How many local trainings started before the previous round was distilled, and of how many."""
    distilled: dict[int, float] = {}
    for span in spans:
        if span.phase == "distill":
            distilled[span.round] = max(distilled.get(span.round, 0.0), span.end)
    trained = [span for span in spans if span.phase == "train" and span.round - 1 in distilled]
    return sum(span.start < distilled[span.round - 1] for span in trained), len(trained)


def read(run: RunRecord) -> list[dict[str, Any]]:
    """The rows of a run's timeline.jsonl; empty if there is none."""
    file = run.path / "timeline.jsonl"
    if run.path == Path() or not file.is_file():
        return []
    rows = []
    for line in file.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:  # an empty line, or the last line of a run that was killed
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def card_of(group: MethodRuns, ident: str) -> str:
    """The timeline of a method's first run; empty if it had a single worker."""
    whole = spans_of(read(group.runs[0]))
    spans = first_rounds(whole)
    workers = sorted({span.worker for span in spans})
    if len(workers) < 2:
        return ""
    begin = min(span.start for span in spans)
    marks = cover(0.0, max(span.end for span in spans) - begin)
    x = Axis(marks[0], marks[-1], tuple((mark, plain(mark)) for mark in marks), "Seconds since the first task shown")
    top = 2 * THIN + GAP
    height = top + len(workers) * (LANE + GAP)
    body = axes(x, None, height, left=0) + _rounds(spans, x, begin)
    for place, worker in enumerate(workers):
        y = top + place * (LANE + GAP)
        body += text("0", y + LANE / 2 + 4, f"worker {worker}", anchor="end", dx=-8)
        body += "".join(_bar(span, x, begin, y) for span in spans if span.worker == worker)
    drawing = picture(
        body,
        ident=ident,
        title=f"{group.label}: tasks of each worker over time",
        desc=_summary(spans, whole),
        height=height,
        pad=(6, 14, 48, 68),
        least=520,
    )
    return card("Timeline", _legend(spans) + drawing, esc(_summary(spans, whole)), kind="span")


def figure(rows: Rows, path: Path) -> Path:
    """Draw rows of timeline.jsonl as a PNG file; returns its path."""
    from matplotlib.patches import Patch

    spans = first_rounds(spans_of(rows))
    workers = sorted({span.worker for span in spans})
    begin = min((span.start for span in spans), default=0.0)
    picture = new_figure(11, 1.8 + 0.5 * max(1, len(workers)))
    lanes = picture.subplots()
    length = max((span.end - begin for span in spans), default=1.0)
    for span in spans:
        where = (workers.index(span.worker) - 0.4, 0.8)
        look: dict[str, Any] = {"facecolor": _colour(span.phase), "edgecolor": style.LIGHT.surface, "linewidth": 0.4}
        lanes.broken_barh([(span.start - begin, span.end - span.start)], where, alpha=_strength(span.round), **look)
        if (span.end - span.start) > 0.03 * length:
            ink = style.LIGHT.surface if _strength(span.round) == 1 else style.LIGHT.ink
            middle = ((span.start + span.end) / 2 - begin, where[0] + 0.4)
            lanes.annotate(span.node, middle, ha="center", va="center", fontsize=7, color=ink, clip_on=True)
    for at, (start, end) in _extents(spans).items():
        row = -0.75 - 0.35 * (at % 2)
        lanes.plot([start - begin, end - begin], [row, row], color=style.LIGHT.muted, linewidth=2)
        named: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "va": "bottom", "fontsize": 7}
        lanes.annotate(f"round {at}", (start - begin, row), color=style.LIGHT.muted, **named)
    lanes.set_yticks(range(len(workers)), [f"worker {worker}" for worker in workers])
    lanes.set_ylim(len(workers) - 0.5, -1.5)
    lanes.set_xlabel("Seconds since the first task shown")
    lanes.spines[["top", "right", "left"]].set_visible(False)
    lanes.tick_params(left=False)
    if not spans:
        lanes.text(0.5, 0.5, "no task was recorded", ha="center", va="center", transform=lanes.transAxes)
    handles = [Patch(color=_colour(phase), label=PHASES[phase]) for phase in _phases(spans)]
    add_legend(picture, handles)
    picture.savefig(path)
    return path


def _phases(spans: Sequence[Span]) -> list[str]:
    return [phase for phase in PHASES if any(span.phase == phase for span in spans)]


def _colour(phase: str) -> str:
    return style.LIGHT.colours[list(PHASES).index(phase)]


def _strength(at: int) -> float:
    return 1.0 if at % 2 else FAINT


def _extents(spans: Sequence[Span]) -> dict[int, tuple[float, float]]:
    """Start of the first and end of the last task, by round."""
    found: dict[int, tuple[float, float]] = {}
    for span in spans:
        start, end = found.get(span.round, (span.start, span.end))
        found[span.round] = (min(start, span.start), max(end, span.end))
    return dict(sorted(found.items()))


def _rounds(spans: Sequence[Span], x: Axis, begin: float) -> str:
    """A bar from the start to the end of each round, in two alternating rows, so that overlaps are visible."""
    parts = []
    for at, (start, end) in _extents(spans).items():
        y = THIN * (at % 2)
        left, wide = x.share(start - begin), x.share(end - begin) - x.share(start - begin)
        parts.append(
            f'<rect x="{pct(left)}" y="{px(y + THIN - 4)}" width="{pct(wide)}" height="3" '
            f'style="fill:var(--muted)"><title>{esc(f"round {at}: {duration(end - start)}")}</title></rect>'
        )
        if wide > 0.05 or at == 1:
            parts.append(text(pct(left), y + THIN - 6, f"round {at}"))
    return "".join(parts)


def _bar(span: Span, x: Axis, begin: float, y: float) -> str:
    left, wide = x.share(span.start - begin), x.share(span.end - begin) - x.share(span.start - begin)
    kind = f"c{list(PHASES).index(span.phase)}"
    place = f'x="{pct(left)}" y="{px(y)}" width="{pct(wide)}" height="{px(LANE)}"'
    look = f"fill:var(--own);fill-opacity:{_strength(span.round):g};stroke:var(--surface);stroke-width:.5"
    return f'<rect class="{kind}" {place} style="{look}"><title>{esc(span.text)}</title></rect>'


def _legend(spans: Sequence[Span]) -> str:
    items = []
    for phase in _phases(spans):
        swatch = '<svg width="14" height="14" aria-hidden="true"><rect width="14" height="14" rx="3"'
        own = f'class="c{list(PHASES).index(phase)}" style="fill:var(--own)"/></svg>'
        items.append(f"<li>{swatch} {own}{esc(PHASES[phase])}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _summary(spans: Sequence[Span], whole: Sequence[Span]) -> str:
    rounds, every = sorted({span.round for span in spans}), {span.round for span in whole}
    length = max(span.end for span in spans) - min(span.start for span in spans)
    busy = sum(span.end - span.start for span in spans) / max(length * len({span.worker for span in spans}), 1e-9)
    some = f"Rounds {rounds[0]} to {rounds[-1]} of {len(every)}. " if len(rounds) < len(every) else ""
    text = f"{some}Every other round is lighter. Workers were busy for {percent(busy, 0)} of the time."
    began, trained = early(spans)
    if trained:
        text += f" {began} of {trained} local trainings started before the previous round was distilled."
    return text
