"""Whether a paper's claims hold for our results, as verdicts and sentences.

A claim holds in a column if its mean is better than that of each other row and the interval of the difference, paired
by seed, does not contain zero. It does not hold if another row is better in the same sense. Otherwise it cannot be
told. A single seed has no interval: then the values are compared, and a sentence says so. Where a row's method gives
the same result as another method on the split of every seed, claims about this row are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from headwater.papers.measures import COUNTS, Measure
from headwater.papers.results import Results, TableEntry, entry_gap
from headwater.papers.table import Claim
from headwater.report.differences import FEWEST

Verdict = Literal["holds", "does not hold", "cannot be told"]
MOST = 6  # columns that are named; more are only counted
LEAST = 3  # fewest rows for a rank correlation
# Least Kendall's tau-b, and the words for it.
AGREEMENT = (
    (0.999, "the same"),
    (0.6, "much alike"),
    (0.2, "loosely alike"),
    (-0.2, "unrelated"),
    (-2.0, "opposed"),
)


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim in one column (or, for a claim about columns, in one row)."""

    better: str
    than: tuple[str, ...]
    place: str
    verdict: Verdict
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"in" if key == "place" else key: value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class RankAgreement:
    """Rank correlation between the paper's and our order of rows in a column."""

    column: str
    rows: int
    tau: float

    @property
    def sentence(self) -> str:
        words = next(words for least, words in AGREEMENT if self.tau >= least)
        return (
            f"{self.column}: the printed order of {self.rows} rows and ours are {words} (Kendall's tau {self.tau:.2f})."
        )


def judge(results: Results) -> list[ClaimVerdict]:
    """The verdict on every claim of the table, for each column (or row) that has all values needed."""
    found = []
    for claim in results.plan.table.order:
        by_row = claim.better in results.rows
        places = (claim.columns or _scored(results)) if by_row else (claim.rows or results.rows)
        for place in places:
            keys = [(name, place) if by_row else (place, name) for name in (claim.better, *claim.than)]
            if any(key not in results.entries or results.entries[key].same_as for key in keys):
                continue
            column = place if by_row else claim.better
            entries = [results.entries[key] for key in keys]
            found.append(_judged(claim, place, entries, by_row, results.measure(column)))
    return found


def _scored(results: Results) -> tuple[str, ...]:
    """The columns that measure quality rather than cost. A claim refers to these unless it names columns."""
    return tuple(column for column in results.columns if results.measure(column).name not in COUNTS)


def _judged(claim: Claim, place: str, entries: Sequence[TableEntry], by_row: bool, measure: Measure) -> ClaimVerdict:
    def verdict_of(verdict: Verdict, reason: str) -> ClaimVerdict:
        return ClaimVerdict(claim.better, claim.than, place, verdict, reason)

    first, others = entries[0], entries[1:]
    missing = [_name(each, by_row) for each in entries if _level(each, measure) is None]
    if missing:
        lacks = "lack" if len(missing) > 1 else "lacks"
        return verdict_of("cannot be told", f"{join_names(missing)} {lacks} a result in some seed")
    by_order: dict[int, list[str]] = {-1: [], 0: [], 1: []}
    for other in others:
        by_order[_compare(first, other, measure)].append(_name(other, by_row))
    worse, unclear = by_order[-1], by_order[0]
    if worse:
        return verdict_of("does not hold", f"{join_names(worse)} {'are' if len(worse) > 1 else 'is'} better")
    if unclear and first.mean is None:  # the means of the unclear ones are then None too
        never = [_name(first, by_row), *unclear]
        which = f"none of {join_names(never)}" if len(never) > 2 else f"neither {never[0]} nor {never[1]}"
        return verdict_of("cannot be told", f"{which} reached the target")
    if unclear:
        alone = len(first.values) == 1
        why = "the numbers are equal" if alone else "the interval of the difference contains zero"
        return verdict_of("cannot be told", f"{join_names(unclear)}: {why}")
    return verdict_of("holds", "")


def _compare(one: TableEntry, other: TableEntry, measure: Measure) -> int:
    """+1 if the first is better, -1 if the other is, 0 if it cannot be told."""
    left, right = _level(one, measure), _level(other, measure)
    assert left is not None
    assert right is not None
    if left == right:
        return 0
    gap = entry_gap(one, other)
    if gap is not None and gap.seeds >= FEWEST and not gap.star:
        return 0
    return 1 if left > right else -1


def _level(entry: TableEntry, measure: Measure) -> float | None:
    """The mean with its sign such that larger is better; -inf for a target that no seed reached."""
    if entry.mean is not None:
        return -entry.mean if measure.lower_is_better else entry.mean
    never = measure.name == "rounds_to" and not entry.failed and not entry.known
    return -math.inf if never else None


def sentences(results: Results, judged: Sequence[ClaimVerdict]) -> list[str]:
    """A sentence per claim with its verdicts, and a caution if there is only one seed."""
    lines = []
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
        lines.append(f"{better} better than {join_names(than)}: {'; '.join(parts)}.")
    if lines and len(results.plan.seeds) == 1:
        lines.append("With one seed there is no interval: this is the order of single runs and may differ for others.")
    return lines


def coincidences(results: Results) -> list[str]:
    """A sentence per row whose method gives the same result as another method in some columns."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for entry in results.entries.values():
        if other := entry.same_as:
            found.setdefault((entry.row, *other), []).append(entry.column)
    return [
        f"{row} is the same as {method} in {'; '.join(columns)}, since {because}: no order of it is judged there."
        for (row, method, because), columns in found.items()
    ]


def ranks(results: Results) -> list[RankAgreement]:
    """Rank correlation of each column in which at least three rows have both values."""
    found = []
    for column in results.columns:
        both = [
            (entry.printed, entry.mean)
            for row in results.rows
            if (entry := results.entries.get((row, column)))
            and entry.printed is not None
            and entry.mean is not None
            and not entry.same_as
        ]
        if len(both) < LEAST:
            continue
        from scipy.stats import kendalltau

        tau = float(kendalltau([printed for printed, _ in both], [ours for _, ours in both]).statistic)
        if math.isfinite(tau):
            found.append(RankAgreement(column, len(both), tau))
    return found


def _everywhere(results: Results, about: Sequence[ClaimVerdict]) -> str:
    """Words for all places of a claim: everywhere in the table, or where it is claimed."""
    judged = {each.place for each in about}
    every = _scored(results) if about[0].better in results.rows else results.rows
    return "everywhere" if judged.issuperset(every) else f"in all {len(judged)} places where it is claimed"


def _places(alike: Sequence[ClaimVerdict]) -> str:
    texts = [f"{each.place} ({each.reason})" if each.reason else each.place for each in alike]
    rest = len(texts) - MOST
    return "; ".join(texts) if rest <= 0 else f"{'; '.join(texts[:MOST])} and {rest} more"


def _name(entry: TableEntry, by_row: bool) -> str:
    return entry.row if by_row else entry.column


def join_names(names: Sequence[str]) -> str:
    """A, B and C."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
