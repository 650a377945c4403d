"""A finished table as Markdown, CSV, JSON and, if it has one, a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.records import to_json
from headwater.errors import ConfigError
from headwater.papers.claims import ClaimVerdict, RankAgreement, coincidences, judge, ranks, sentences
from headwater.papers.results import Results, TableEntry
from headwater.report.differences import LEGEND, RANKS_LEGEND, gap_facts
from headwater.report.numbers import NONE

COLUMNS = ["row", "column", "metric", "unit", "paper", "paper_spread"]
COLUMNS += ["ours", "low", "high", "difference", "seeds", "failed", "same_as"]
COLUMNS += ["baseline", "to_baseline", "to_baseline_low", "to_baseline_high", "star", "won", "lost", "wilcoxon_p"]
SAME = "†"  # marks a cell whose method gives the same result as another method
DECIMALS = {"%": 2, "M": 3, "s": 3}


@dataclass(frozen=True)
class TableReport:
    """The results of a table with the verdicts on its claims."""

    results: Results
    judged: tuple[ClaimVerdict, ...]
    ranked: tuple[RankAgreement, ...]

    @staticmethod
    def of(results: Results) -> TableReport:
        return TableReport(results, tuple(judge(results)), tuple(ranks(results)))

    @property
    def claims(self) -> list[str]:
        return sentences(self.results, self.judged)

    @property
    def orders(self) -> list[str]:
        return [each.sentence for each in self.ranked]

    @property
    def alike(self) -> list[str]:
        return coincidences(self.results)

    @property
    def failures(self) -> list[str]:
        """One sentence per cause of failure, with the first run that failed so."""
        alike: dict[str, list[str]] = {}
        for name, sentence in self.results.failures.items():
            alike.setdefault(sentence, []).append(name)
        return [
            f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''} failed: {sentence}"
            for sentence, names in alike.items()
        ]


def write_files(report: TableReport, out: Path, say: Callable[[str], None]) -> list[Path]:
    """Write table.md, table.csv, table.json and the picture, each atomically; returns their paths.

    Args:
        report: the table.
        out: its directory.
        say: called with the reason if the picture cannot be drawn; the other files are written all the same.
    """
    from headwater.training.checkpoint import write_whole

    out.mkdir(parents=True, exist_ok=True)
    written = []
    texts = {"table.md": markdown(report), "table.csv": csv_text(report.results), "table.json": as_json(report)}
    for name, words in texts.items():
        write_whole(out / name, words)
        written.append(out / name)
    try:
        drawn = picture(report.results, out / "picture.png")
    except ConfigError as error:
        say(f"there is no picture: {error}")
        return written
    return [*written, drawn] if drawn else written


def cell_text(entry: TableEntry | None) -> str:
    """Our mean ± half its interval (the paper's value, the difference), as far as they are known."""
    if entry is None:
        return ""
    ours = _ours(entry)
    mark = f" {SAME}" if entry.alike else ""
    if entry.alike and not entry.same_as:
        mark += f" in {len(entry.alike)} of {len(entry.values)} seeds"
    if entry.printed is None:
        return ours + mark
    paper = number(entry.printed, entry.unit)
    apart = "" if entry.difference is None else f", {number(entry.difference, entry.unit, sign=True)}"
    return f"{ours} ({paper}{apart}){mark}"


def _ours(entry: TableEntry) -> str:
    if entry.mean is None:
        few = len(entry.values) - len(entry.known) - len(entry.failed)
        parts = [f"failed in {len(entry.failed)}"] if entry.failed else []
        parts += [f"{NONE} in {few}"] if few and (entry.known or entry.failed) else []
        whole = len(entry.values)
        if len(entry.failed) == whole:
            return "failed"
        return f"{' and '.join(parts)} of {whole} seeds" if parts else NONE
    mean, ends = number(entry.mean, entry.unit), entry.interval
    if ends is None or entry.half is None:
        return mean
    if ends != (entry.mean - entry.half, entry.mean + entry.half):  # it would leave the range of an accuracy
        return f"{mean} [{number(ends[0], entry.unit)}, {number(ends[1], entry.unit)}]"
    return f"{mean} ± {number(entry.half, entry.unit)}"


def number(value: float, unit: str, *, sign: bool = False) -> str:
    """A value with the decimals of its unit."""
    plus = "+" if sign else ""
    if unit in DECIMALS:
        return f"{value:{plus}.{DECIMALS[unit]}f}"
    return f"{value:{plus}.0f}" if value == round(value) else f"{value:{plus}.4g}"


def heading(results: Results, column: str) -> str:
    """A column's name with its unit."""
    unit = results.plan.table.unit_of(results.plan.table.column(column))
    return f"{column}, {unit}" if unit else column


def legend(results: Results) -> str:
    """A sentence that explains the numbers in the cells."""
    several = " ± half the 95 % t-interval over seeds" if len(results.plan.seeds) > 1 else ""
    printed = any(entry.printed is not None for entry in results.entries.values())
    paper = " (the paper's value, ours minus the paper's)" if printed else ""
    missing = any(entry.mean is None and not entry.failed for entry in results.entries.values())
    none = f" {NONE}: not reached, or nothing to measure." if missing else ""
    same = dict.fromkeys(other for entry in results.entries.values() for other in entry.alike.values())
    notes = "".join(f" {SAME}: the same as {other.method}, since {other.because}." for other in same)
    return f"Ours{several}{paper}.{none}{notes}"


def gap_text(results: Results, row: str, column: str) -> str:
    """The difference of a cell to the baseline's, paired by seed."""
    gap = results.gap(row, column)
    unit = results.plan.table.unit_of(results.plan.table.column(column))
    return NONE if gap is None else gap.shown(1.0, DECIMALS.get(unit, 2))


def gap_legend(results: Results) -> list[str]:
    """Sentences that explain differences to the baseline; empty where there are none."""
    gaps = [gap for row, column in results.entries if (gap := results.gap(row, column))]
    return ([LEGEND.replace("in points", "in the column's unit")] if gaps else []) + (
        [RANKS_LEGEND] if any(gap.wins is not None for gap in gaps) else []
    )


def _gap_facts(results: Results, row: str, column: str) -> dict[str, Any]:
    return {"baseline": results.base} | gap_facts(results.gap(row, column), "to_baseline")


def markdown(report: TableReport) -> str:
    """The whole table as Markdown."""
    results, plan = report.results, report.results.plan
    table = plan.table
    lines = [f"# {table.title or table.name}", "", f"Scale {plan.scale}, {_seeds(plan.seeds)}. {legend(results)}", ""]
    lines += _grid(results, results.rows, lambda row, column: cell_text(results.entries.get((row, column))))
    if about := gap_legend(results):
        others = [row for row in results.rows if row != results.base]
        lines += ["", f"## Difference to {_safe(results.base)}", "", " ".join(map(_safe, about)), ""]
        lines += _grid(results, others, lambda row, column: gap_text(results, row, column))
    for title, found in (
        ("Failed", report.failures),
        ("What the paper claims", [*report.claims, *report.alike]),
        ("Rank correlation", report.orders),
        ("What differs from the printed setting", _differs(plan.scale, plan.remarks)),
        ("Note", [table.note] if table.note else []),
    ):
        if found:
            lines += ["", f"## {title}", "", *(f"* {_safe(sentence)}" for sentence in found)]
    return "\n".join(lines) + "\n"


def _grid(results: Results, rows: Sequence[str], text: Callable[[str, str], str]) -> list[str]:
    """The lines of a Markdown table with a text per row and column."""
    lines = [f"| | {' | '.join(_safe(heading(results, column)) for column in results.columns)} |"]
    lines += ["|" + " :-- |" + " --: |" * len(results.columns)]
    for row in rows:
        lines.append(f"| {_safe(row)} | {' | '.join(_safe(text(row, column)) for column in results.columns)} |")
    return lines


def csv_text(results: Results) -> str:
    """One line per cell: plain numbers, empty where there is none."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for entry in results.entries.values():
        line: dict[str, Any] = entry.to_dict() | {"metric": results.measure(entry.column).text}
        line |= _gap_facts(results, entry.row, entry.column)
        line |= {"seeds": len(entry.values), "failed": "; ".join(dict.fromkeys(entry.failed.values()))}
        line |= {"same_as": entry.same_as.method if entry.same_as else ""}
        writer.writerow(line)
    return out.getvalue()


def as_dict(report: TableReport) -> dict[str, Any]:
    results, plan = report.results, report.results.plan
    return {
        "table": plan.table.name,
        "title": plan.table.title,
        "scale": plan.scale,
        "seeds": list(plan.seeds),
        "note": plan.table.note,
        "remarks": list(plan.remarks),
        "cells": [
            entry.to_dict()
            | {"metric": results.measure(entry.column).text}
            | _gap_facts(results, entry.row, entry.column)
            for entry in results.entries.values()
        ],
        "baseline": results.base,
        "order": [each.to_dict() for each in report.judged],
        "agreement": [{"column": each.column, "rows": each.rows, "tau": each.tau} for each in report.ranked],
        "sentences": [*report.claims, *report.alike, *report.orders],
        "failed": report.results.failures,
    }


def as_json(report: TableReport) -> str:
    return to_json(as_dict(report), indent=1) + "\n"


def picture(results: Results, path: Path) -> Path | None:
    """Draw the picture of a table from its finished runs; None if it has none or no run is finished."""
    from headwater.config import Config
    from headwater.papers import pictures
    from headwater.report.runs import read

    plan = results.plan
    kind, base = plan.table.picture, path.parent
    if not kind:
        return None
    done = {
        key: [base / run for seed, run in entry.runs.items() if seed not in entry.failed]
        for key, entry in results.entries.items()
    }
    if kind == "boundaries":
        first = next((runs[0] for runs in done.values() if runs), None)
        if first is None:
            return None
        return pictures.boundaries(Config.from_toml((first / "config.toml").read_text(encoding="utf-8")), path)

    def shown(run: Path, column: str) -> list[dict[str, Any]]:
        """The rows of a run with the column's measure as their accuracy."""
        record = read(run)
        key = results.measure(column).key(record) if kind not in ("before_after", "fusion") else "accuracy"
        return [{**row, "accuracy": row.get(key)} for row in record.rows]

    cells = {
        column: {
            row: [shown(run, column) for run in done[row, column]] for row in results.rows if done.get((row, column))
        }
        for column in results.columns
    }
    drawn = {column: rows for column, rows in cells.items() if rows}
    return pictures.PICTURES[kind](drawn, path) if drawn else None


def _differs(scale: str, remarks: Sequence[str]) -> list[str]:
    from headwater.papers.scales import find

    about = [] if scale == "paper" else [f"Scale {scale}: {find(scale).about}."]
    return [*about, *remarks]


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


def _safe(words: str) -> str:
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")
