"""Timeline of a run: what each worker did when. Shows how rounds overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.records import parse_json
from headwater.report.numbers import duration, number, percent
from headwater.report.runs import RunRecord

# Phases with the words of the legend; "" stands for all others.
PHASES = {"train": "training", "distill": "distilling", "evaluate": "evaluating", "": "combining"}
MOST = 300  # tasks in a figure; of a long run, the first rounds are shown

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
            row = parse_json(line)
        except ValueError:  # an empty line, or the last line of a run that was killed
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def figure(rows: Rows, path: Path) -> Path:
    """Draw rows of timeline.jsonl as a PNG file; returns its path."""
    from headwater.report import charts, detail_charts

    spans = first_rounds(spans_of(rows))
    drawn = detail_charts.lanes(spans) | {"width": 960} if spans else charts.words("no task was recorded")
    return charts.picture(drawn, path)


def extents(spans: Sequence[Span]) -> dict[int, tuple[float, float]]:
    """Start of the first and end of the last task, by round."""
    found: dict[int, tuple[float, float]] = {}
    for span in spans:
        start, end = found.get(span.round, (span.start, span.end))
        found[span.round] = (min(start, span.start), max(end, span.end))
    return dict(sorted(found.items()))


def summary(spans: Sequence[Span], whole: Sequence[Span]) -> str:
    """How busy the workers were, in sentences."""
    rounds, every = sorted({span.round for span in spans}), {span.round for span in whole}
    length = max(span.end for span in spans) - min(span.start for span in spans)
    busy = sum(span.end - span.start for span in spans) / max(length * len({span.worker for span in spans}), 1e-9)
    some = f"Rounds {rounds[0]} to {rounds[-1]} of {len(every)}. " if len(rounds) < len(every) else ""
    text = f"{some}Every other round is paler. Workers were busy for {percent(busy, 0)} of the time."
    began, trained = early(spans)
    if trained:
        text += f" {began} of {trained} local trainings started before the previous round was distilled."
    return text
