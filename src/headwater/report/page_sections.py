"""The parts of the report page as plain values, which the template lays out: tables, charts and the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from headwater.report import charts, detail_charts, leaders, method_text, timeline
from headwater.report.client_data import caller, class_names, client_accuracy, client_sectors
from headwater.report.grouping import MethodRuns, differing, flat, over_seeds, split_of
from headwater.report.method_table import MethodRow, MethodTable
from headwater.report.numbers import NONE, count, mean, number, percent, size
from headwater.report.runs import DIRECTIONS, TIERS, RunRecord, tree_bytes
from headwater.report.teaching import at_place, verdicts
from headwater.report.teaching import teaching as by_place

TIER_NAMES = {"server_sector": "server – sectors", "sector_client": "sectors – clients"}
COUNTED = {"up_models": "models up", "down_models": "models down", "round_trips": "round trips"}
ALL_TESTED = 100  # with more clients, a run tests a fixed sample of them


@dataclass(frozen=True)
class TableCell:
    """Text of a table cell, the number behind it for sorting, and whether it is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row is its heading."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    kind: str = ""

    @property
    def marked(self) -> bool:
        """Whether the best of a column is marked."""
        return any(cell.best for row in self.rows for cell in row)


@dataclass(frozen=True)
class Figure:
    """A chart with its title, its description for readers who cannot see it, and a note."""

    ident: str
    title: str
    description: str
    spec: charts.Spec
    note: str = ""
    kind: str = ""


def results(found: MethodTable) -> Table:
    """One row per method."""
    shown = method_text.columns(found)
    best = [method_text.best_rows(found, column) for column in shown]
    rows = [
        [
            TableCell(column.text(row), _behind(row, column.key), at in wins)
            for column, wins in zip(shown, best, strict=True)
        ]
        for at, row in enumerate(found.rows)
    ]
    return Table("Results by method", [column.heading for column in shown], rows, "results")


def _behind(row: MethodRow, key: str) -> float | None:
    """The number that a cell is sorted by."""
    return (row.gap.mean if row.gap else None) if key == "gap" else number(getattr(row, key))


def cost(groups: Sequence[MethodRuns]) -> Table:
    """Bytes by tier and direction, models, round trips and setup: means over the counted seeds."""
    runs = [run for each in groups for run in each.counted]
    others = sorted({key for run in runs for key in _other_parts(run)})
    heads, rows = ["Method"], [[TableCell(each.label)] for each in groups]

    def add(head: str, values: list[float | None], text: Any = size) -> None:
        heads.append(head)
        for cells, value in zip(rows, values, strict=True):
            cells.append(TableCell(text(value), value))

    for tier in TIERS:
        for way in DIRECTIONS:
            add(f"{TIER_NAMES[tier]}, {way}", [mean(run.sent(tier, way) for run in each.counted) for each in groups])
        for key, words in COUNTED.items():
            if any(number(run.ledger(tier).get(key)) is not None for run in runs):
                means = [mean(number(run.ledger(tier).get(key)) for run in each.counted) for each in groups]
                add(f"{TIER_NAMES[tier]}, {words}", means, count)
    for key in others:
        add(key.replace("_", " "), [mean(_other_parts(run).get(key) for run in each.counted) for each in groups])
    add("setup, once", [mean(run.setup for run in each.counted) for each in groups])
    return Table("Cost by tier and direction", [head[:1].upper() + head[1:] for head in heads], rows, "cost")


def every_run(groups: Sequence[MethodRuns]) -> Table:
    """One row per run, with the hashes of its split and its model."""
    rows = []
    for each in groups:
        for run in each.runs:
            ends = run.interval
            sent = mean([run.sent("server_sector", way) for way in DIRECTIONS])
            rows.append(
                [
                    TableCell(each.label),
                    TableCell(str(run.seed), run.seed),
                    TableCell(progress(run), run.done),
                    TableCell(percent(run.accuracy, 2), run.accuracy),
                    TableCell(*((f"{100 * ends[0]:.2f} to {percent(ends[1], 2)}", ends[0]) if ends else (NONE, None))),
                    TableCell(size(None if sent is None else 2 * sent), sent),
                    TableCell(split_of(run)[:12] or NONE),
                    TableCell(str((run.result or {}).get("model_sha256") or NONE)[:12]),
                    TableCell(str(run.path)),
                ]
            )
    heads = ("Method", "Seed", "Rounds", "Accuracy", "Interval over test set", "Long link", "Split", "Model")
    return Table("Every run", (*heads, "Directory"), rows, "runs sortable")


def settings(groups: Sequence[MethodRuns]) -> Table | None:
    """The keys in which methods differ; None if there are none."""
    keys = differing([each.runs for each in groups]) if len(groups) > 1 else []
    configs = [flat(each.runs[0].config) for each in groups]
    rows = [[TableCell(key), *(TableCell(_setting(config.get(key))) for config in configs)] for key in keys]
    heads = ["Key", *(each.label for each in groups)]
    return Table("Where the configurations differ", heads, rows, "words") if rows else None


def progress(run: RunRecord) -> str:
    """Finished rounds; for an unfinished run, also the planned ones."""
    if run.finished:
        return str(run.done)
    return f"{run.done} of {run.planned}, unfinished" if run.planned else f"{run.done}, unfinished"


def spread(groups: Sequence[MethodRuns]) -> Figure | None:
    """Accuracy by client in each method's first run, all on one axis; None if it was not recorded."""
    rows, ends = [], []
    for each in groups:
        run = each.runs[0]
        found, known, called = client_accuracy(run), client_sectors(run.partition), caller(run.partition)
        for at, name in enumerate(sorted(found, key=lambda key: found[key])):
            digits = name.lstrip("client_- ")
            who = int(digits) if digits.isdecimal() else None
            rows.append(
                {"name": each.label, "accuracy": found[name], "lift": 0.1 + 0.8 * (at * 0.618034 % 1)}
                | {"client": name if who is None else called("client", who)}
                | {"sector": NONE if who is None or who not in known else called("sector", known[who])}
            )
        if found:
            values = [*found.values()]
            registered = len(known)
            some = f" of {count(registered)}" if len(values) == ALL_TESTED < registered else ""
            ends.append(
                f"{each.label}, {len(values)} clients{some}: lowest {percent(min(values))}, "
                f"median {percent(median(values))}, highest {percent(max(values))}"
            )
    if not rows:
        return None
    seeds = "Of each method's first seed. " if any(len(each.runs) > 1 for each in groups) else ""
    note = f"{seeds}Each mark is a client; the bar is the mean over clients."
    names = [each.label for each in groups if any(row["name"] == each.label for row in rows)]
    spec = detail_charts.spread(rows, names)
    return Figure("spread", "Accuracy by client", "; ".join(ends) + ".", spec, note, "span")


def confusions(groups: Sequence[MethodRuns]) -> list[Figure]:
    """The confusion matrix of each method, summed over the counted seeds."""
    figures = []
    for at, each in enumerate(groups):
        found = [matrix for run in each.counted if (matrix := _square(run.last("confusion"))) is not None]
        found = [matrix for matrix in found if len(matrix) == len(found[0])]
        if not found:
            continue
        classes = range(len(found[0]))
        total = [[sum(matrix[r][c] for matrix in found) for c in classes] for r in classes]
        named = next((run.partition.get("classes") for run in each.runs if run.partition), None)
        names = class_names(named, len(total))
        seeds = f" {len(found)} seeds together." if len(found) > 1 else ""
        spec = detail_charts.confusion(total, names, 220 if len(groups) > 1 else 320)
        figures.append(Figure(f"confusion-{at}", each.label, _mistakes(total, names) + seeds, spec, "shown"))
    return figures


def _mistakes(total: list[list[float]], names: list[str]) -> str:
    classes = range(len(total))
    wrong = [(total[r][c] / sum(total[r]), r, c) for r in classes for c in classes if r != c and total[r][c]]
    top = [f"{names[r]} taken for {names[c]} ({percent(share)})" for share, r, c in sorted(wrong, reverse=True)[:3]]
    return f"Most frequent mistakes: {'; '.join(top)}." if top else "No mistakes on the test set."


def teaching(groups: Sequence[MethodRuns]) -> tuple[list[Figure], Table | None]:
    """Teachers and students by round for each method that distils, and a table of the last round by place."""
    figures, rows = [], []
    for at, each in enumerate(groups):
        places = any(isinstance(row.get("distill"), dict) for run in each.runs for row in run.rows)
        for server, where in ((False, " at sectors" if places else ""), (True, " at the server")):
            lines: list[charts.Spec] = []
            for key, role in charts.ROLES.items():
                measure = at_place(key, server=server) if places else None if server else key
                lines += [
                    {"name": role, "round": p.round, "value": p.value, "low": p.low, "high": p.high}
                    for p in (over_seeds(each.runs, measure, costs=False) if measure else ())
                ]
            if lines:
                ends = "; ".join({row["name"]: f"{row['name']} {percent(row['value'])}" for row in lines}.values())
                title = f"{each.label}: teacher and student{where}"
                ident = f"teaching-{at}{'s' if server else ''}"
                figures.append(Figure(ident, title, f"Last round: {ends}.", charts.lines(lines, _roles(lines))))
        called, led = caller(each.counted[0].partition), leaders.of_round(each.counted[0])
        for node, known in by_place(each).items():
            digits = node.lstrip("s")
            name = called("sector", int(digits)) if digits.isdecimal() else node
            name += f", led by {led[node]}" if node in led else ""
            teachers = known["teachers"]
            sectors = len({*client_sectors(each.counted[0].partition).values()})
            kind = "sectors" if node == "server" and teachers is not None and teachers <= sectors else "clients"
            by = "" if teachers is None else f"{count(teachers)} {kind}"
            before, after = known["student_before"], known["student_after"]
            gain = None if before is None or after is None else after - before
            kept = [accepted for accepted, _ in verdicts(each, node)]
            shown = ("teacher_best", "teacher_worst", *charts.ROLES)
            rows.append(
                [TableCell(each.label), TableCell(name), TableCell(by or NONE, teachers)]
                + [TableCell(percent(known[key]), known[key]) for key in shown]
                + [TableCell(NONE if gain is None else f"{100 * gain:+.1f}", gain)]
                + [TableCell(f"{sum(kept)} of {len(kept)}" if kept else NONE, sum(kept) / len(kept) if kept else None)]
            )
    heads = ["Method", "Student", "Taught by", "Best teacher", "Worst teacher", "Teachers together", "Student before"]
    heads += ["Student after", "Points gained", "Accepted, all rounds"]
    return figures, Table("Who taught whom, last round, validation set", heads, rows) if rows else None


def led(groups: Sequence[MethodRuns]) -> list[Figure]:
    """Who led each sector in each round, for each method whose sectors have leaders."""
    note = (
        "Each cell is a sector in a round and names its leader: the client whose model the others taught. Blue: the "
        "lesson raised the leader's accuracy on the validation set; orange: it lowered it; the paler, the less."
    )
    found = leaders.figures(groups)
    return [Figure(f"led-{at}", *each, note, "span") for at, each in enumerate(found)]


def _roles(lines: Sequence[dict[str, Any]]) -> list[str]:
    return [role for role in charts.ROLES.values() if any(line["name"] == role for line in lines)]


def timelines(groups: Sequence[MethodRuns]) -> list[Figure]:
    """What each worker did when, in the first run of each method that had several workers."""
    figures = []
    for at, each in enumerate(groups):
        whole = timeline.spans_of(timeline.read(each.runs[0]))
        spans = timeline.first_rounds(whole)
        if len({span.worker for span in spans}) > 1:
            words = timeline.summary(spans, whole)
            figures.append(Figure(f"timeline-{at}", each.label, words, detail_charts.lanes(spans), "shown", "span"))
    return figures


def curve_words(groups: Sequence[MethodRuns], key: str) -> str:
    """Last values of the curves, as the chart's description."""
    ends = [(each.label, run_points[-1]) for each in groups if (run_points := over_seeds(each.runs, key, costs=False))]
    text = percent if key == "accuracy" else lambda value: f"{value:.3f}"
    listed = [f"{name} {text(point.value)} at round {point.round}" for name, point in ends[:24]]
    return f"Last values: {'; '.join(listed)}." if listed else "Nothing was measured yet."


def _other_parts(run: RunRecord) -> dict[str, float]:
    """Bytes of other ledger entries, such as evaluation or the relay of a deployment."""
    whole = (run.result or {}).get("ledger")
    parts = whole.items() if isinstance(whole, dict) else ()
    known = {key: tree_bytes(value) for key, value in parts if key not in (*TIERS, "setup")}
    return {key: total for key, total in known.items() if total}


def _setting(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _square(value: Any) -> list[list[float]] | None:
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(row, list) and len(row) == len(value) for row in value):
        return None
    return [[max(0.0, number(cell) or 0.0) for cell in row] for row in value]  # counts, of a file that may be damaged
