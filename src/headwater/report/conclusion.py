"""The conclusion of a report in sentences: who is ahead, what distillation did, what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.report.differences import FEWEST, difference
from headwater.report.grouping import MethodRuns
from headwater.report.method_table import ONE_RUN, OVER_SEEDS, MethodRow, MethodTable
from headwater.report.numbers import NBSP, count, percent, size
from headwater.report.teaching import guard_sentence, taught_sentence

MOST = 3  # methods, or problems, that the conclusion speaks of


def sentences(groups: Sequence[MethodRuns], table: MethodTable) -> list[str]:
    """The conclusion, a few sentences."""
    if all(row.accuracy is None for row in table.rows):
        return ["No accuracy has been measured yet."]
    problems = list(dict.fromkeys(row.problem for row in table.rows))
    found = []
    for words in problems[:MOST]:
        within = f"With {words}: " if words else ""
        inside = [at for at, row in enumerate(table.rows) if row.problem == words]
        found.append(within + (_alone(groups[inside[0]], table.rows[inside[0]]) if len(inside) == 1 else
                               _ahead(groups, table, inside)))  # fmt: skip
    if len(problems) > MOST:
        found.append(f"{len(problems) - MOST} further settings of data and split are in the table.")
    order = sorted(range(len(groups)), key=lambda at: -(table.rows[at].accuracy or 0.0))
    pairs = ((taught_sentence(groups[at], many=len(groups) > 1), guard_sentence(groups[at])) for at in order)
    taught = [words for both in [each for each in pairs if any(each)][:MOST] for words in both if words]
    return [*found, *taught, *_cost(table, order[:MOST])]


def _alone(group: MethodRuns, row: MethodRow) -> str:
    run = group.counted[0]
    if row.interval == OVER_SEEDS:
        around = f" (95{NBSP}% interval over {row.finished} seeds: {_range(row)})"
    elif row.interval == ONE_RUN:
        around = f" (95{NBSP}% interval over the test set: {_range(row)}; one seed)"
    else:
        around = ""
    done = f"after {run.done} rounds" if run.finished else f"after {run.done} of {run.planned} rounds, so far"
    best = run.last("best_round")
    judged = len(group.counted) == 1 and run.last("best_by") == "validation accuracy"
    peak = f" In round {best}, the best on the validation set, it was {percent(row.best_accuracy)}." if judged else ""
    return f"{row.method} reached an accuracy of {percent(row.accuracy)}{around} {done}.{peak}"


def _range(row: MethodRow) -> str:
    return f"{100 * (row.accuracy_low or 0):.1f} to {percent(row.accuracy_high)}"


def _ahead(groups: Sequence[MethodRuns], table: MethodTable, inside: Sequence[int]) -> str:
    ranked = [at for at in inside if table.rows[at].accuracy is not None]
    ranked.sort(key=lambda at: (not table.rows[at].best, -(table.rows[at].accuracy or 0.0)))
    if len(ranked) < 2:
        return "there is nothing to compare yet." if not ranked else _alone(groups[ranked[0]], table.rows[ranked[0]])
    first, second = (table.rows[at] for at in ranked[:2])
    start = f"{first.method} has the highest accuracy, {percent(first.accuracy)}"
    gap = difference(groups[ranked[0]], groups[ranked[1]])
    if gap is not None and abs(gap.mean) < 5e-4:
        return f"{start}, and {second.method} has the same."
    if gap is None:
        return f"{start}; {second.method} has {percent(second.accuracy)}, but no seed in common with it."
    if gap.seeds < FEWEST:
        margin = (
            f"{100 * abs(gap.mean):.1f} points above {second.method}" if gap.mean >= 0 else f"{second.method} follows"
        )
        return f"{start}, {margin}; with one seed, this may be chance."
    verdict = "" if gap.star else f" The interval includes zero, so {gap.seeds} seeds do not show which is better."
    low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in (gap.low, gap.high))
    interval = f"95{NBSP}% interval {low} to {high} points"
    ahead = f"{100 * gap.mean:.1f} points above {second.method} (paired over {gap.seeds} seeds, {interval})"
    return f"{start}, {ahead}.{verdict}"


def _cost(table: MethodTable, order: Sequence[int]) -> list[str]:
    rows = [table.rows[at] for at in order if table.rows[at].bytes is not None]
    if not rows:
        return []
    total = "; ".join(f"{row.method} {size(row.bytes)}" for row in rows)
    found = [f"Sent between server and sectors in all: {total}."]
    reached = [row for row in rows if row.rounds_to_target is not None]
    if reached and table.target is not None and len({row.problem for row in table.rows}) == 1:
        listed = "; ".join(
            f"{row.method} {count(row.rounds_to_target)} round{'' if row.rounds_to_target == 1 else 's'} and "
            f"{size(row.bytes_to_target)}"
            for row in reached
        )
        found.append(f"To reach {percent(table.target)}: {listed}.")
    return found
