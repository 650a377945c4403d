"""What came of a paper's claims, in sentences.

A claim holds in a column if the mean is better than each of the others' and no interval over seeds overlaps; it does
not hold if one of the others is better in the same sense; in all other cases it cannot be told. A single seed has no
interval: then the numbers alone are compared, and the sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headwater.papers.measures import COUNTS, Measure
from headwater.papers.results import Entry, Results
from headwater.papers.table import Claim

Verdict = Literal["holds", "does not hold", "cannot be told"]
MOST = 6  # columns that are named before the rest is counted
LEAST = 3  # rows from which an order is more than a coin
# Kendall's tau-b from which two orders are called so.
AGREEMENT = (
    (0.999, "the same"),
    (0.6, "much alike"),
    (0.2, "loosely alike"),
    (-0.2, "unrelated"),
    (-2.0, "opposed"),
)


@dataclass(frozen=True)
class Judged:
    """One claim in one column (or, for a claim about columns, in one row)."""

    better: str
    than: tuple[str, ...]
    place: str
    verdict: Verdict
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "better": self.better,
            "than": list(self.than),
            "in": self.place,
            "verdict": self.verdict,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Ranks:
    """How alike the printed and the obtained order of rows are in a column."""

    column: str
    rows: int
    tau: float

    @property
    def sentence(self) -> str:
        words = next(words for least, words in AGREEMENT if self.tau >= least)
        return (
            f"{self.column}: the printed order of {self.rows} rows and ours are {words} (Kendall's tau {self.tau:.2f})."
        )


def judge(results: Results) -> list[Judged]:
    """Every claim of the table wherever it is made and the table has all of its numbers."""
    found = []
    for claim in results.plan.table.order:
        by_row = claim.better in results.rows
        places = (claim.columns or _scored(results)) if by_row else (claim.rows or results.rows)
        for place in places:
            keys = [(name, place) if by_row else (place, name) for name in (claim.better, *claim.than)]
            if any(key not in results.entries for key in keys):
                continue
            column = place if by_row else claim.better
            entries = [results.entries[key] for key in keys]
            found.append(_judged(claim, place, entries, by_row, results.measure(column)))
    return found


def _scored(results: Results) -> tuple[str, ...]:
    """The columns that say how good a row is, rather than what it costs: a claim means these unless it names others."""
    return tuple(column for column in results.columns if results.measure(column).name not in COUNTS)


def _judged(claim: Claim, place: str, entries: Sequence[Entry], by_row: bool, measure: Measure) -> Judged:
    def told(verdict: Verdict, reason: str) -> Judged:
        return Judged(claim.better, claim.than, place, verdict, reason)

    first, others = entries[0], entries[1:]
    missing = [_name(each, by_row) for each in entries if _level(each, measure) is None]
    if missing:
        return told("cannot be told", f"{_and(missing)} has no result in every seed")
    worse, unclear = [], []
    for other in others:
        order = _compare(first, other, measure)
        if order < 0:
            worse.append(_name(other, by_row))
        elif order == 0:
            unclear.append(_name(other, by_row))
    if worse:
        return told("does not hold", f"{_and(worse)} {_do('is', worse)} better")
    if unclear and first.mean is None:  # and so are they
        never = [_name(first, by_row), *unclear]
        which = f"none of {_and(never)}" if len(never) > 2 else f"neither {never[0]} nor {never[1]}"
        return told("cannot be told", f"{which} reached the target")
    if unclear:
        alone = len(first.values) == 1
        why = "the numbers are equal" if alone else "intervals overlap"
        return told("cannot be told", f"{_and(unclear)}: {why}")
    return told("holds", "")


def _compare(one: Entry, other: Entry, measure: Measure) -> int:
    """+1, -1, or 0 if it cannot be told."""
    left, right = _level(one, measure), _level(other, measure)
    assert left is not None
    assert right is not None
    if left == right:
        return 0
    gap = abs(left - right)
    if math.isfinite(gap) and gap <= (one.half or 0.0) + (other.half or 0.0):
        return 0
    return 1 if left > right else -1


def _level(entry: Entry, measure: Measure) -> float | None:
    """A number that is larger for the better; a target that nobody reached is the worst there is."""
    if entry.mean is not None:
        return -entry.mean if measure.lower_is_better else entry.mean
    never = measure.name == "rounds_to" and not entry.failed and not entry.known
    return -math.inf if never else None


def sentences(results: Results, judged: Sequence[Judged]) -> list[str]:
    """A sentence for each claim and verdict, and what a reader must know of them."""
    told = []
    claims = list(dict.fromkeys((each.better, each.than) for each in judged))
    for better, than in claims:
        about = [each for each in judged if (each.better, each.than) == (better, than)]
        parts = []
        verdicts: tuple[Verdict, ...] = ("holds", "does not hold", "cannot be told")
        for verdict in verdicts:
            alike = [each for each in about if each.verdict == verdict]
            if alike:
                all_hold = verdict == "holds" and len(alike) == len(about) > 1
                where = _everywhere(results, about) if all_hold else f"in {_places(alike)}"
                parts.append(f"{verdict} {where}")
        told.append(f"{better} better than {_and(than)}: {'; '.join(parts)}.")
    if told and len(results.plan.seeds) == 1:
        told.append("With one seed there is no interval: this is the order of single runs and may differ for others.")
    return told


def ranks(results: Results) -> list[Ranks]:
    """Where at least three rows have both numbers."""
    found = []
    for column in results.columns:
        both = [
            (entry.printed, entry.mean)
            for row in results.rows
            if (entry := results.entries.get((row, column))) and entry.printed is not None and entry.mean is not None
        ]
        if len(both) < LEAST:
            continue
        from scipy.stats import kendalltau

        tau = float(kendalltau([printed for printed, _ in both], [ours for _, ours in both]).statistic)
        if math.isfinite(tau):
            found.append(Ranks(column, len(both), tau))
    return found


def _everywhere(results: Results, about: Sequence[Judged]) -> str:
    """All places where a claim was judged: of the table, or only of the claim."""
    judged = {each.place for each in about}
    every = _scored(results) if about[0].better in results.rows else results.rows
    return "everywhere" if judged.issuperset(every) else f"in all {len(judged)} places where it is claimed"


def _places(alike: Sequence[Judged]) -> str:
    texts = [f"{each.place} ({each.reason})" if each.reason else each.place for each in alike]
    rest = len(texts) - MOST
    return "; ".join(texts) if rest <= 0 else f"{'; '.join(texts[:MOST])} and {rest} more"


def _name(entry: Entry, by_row: bool) -> str:
    return entry.row if by_row else entry.column


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _do(verb: str, names: Sequence[str]) -> str:
    return {"is": "are"}[verb] if len(names) > 1 else verb
