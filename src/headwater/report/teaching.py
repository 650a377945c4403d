"""What distillation did, from the rows of a run: who taught, how well, and whether the result was kept.

All accuracies are on the validation set. `student_before` is that of the average that the student starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headwater.report.grouping import MethodRuns
from headwater.report.numbers import count, mean, number, percent

PLACES = ((False, "at sectors"), (True, "at the server"))
NOTHING = 5e-4  # a smaller difference of accuracies is none


def teaching(group: MethodRuns) -> dict[str, dict[str, float | None]]:
    """Teacher and student accuracy of the last round that has them, by place: each sector, and the server.

    Rows without places have one, named "all".
    """
    for row in reversed(group.counted[0].rows):
        places = row.get("distill")
        if isinstance(places, dict):
            named = {str(node): values for node, values in places.items() if isinstance(values, dict)}
        else:
            named = {"all": row} if "student_after" in row or "teacher_accuracy" in row else {}
        keys = ("teachers", "teacher_best", "teacher_worst", "teacher_accuracy", "student_before", "student_after")
        found = {node: {key: number(values.get(key)) for key in keys} for node, values in named.items()}
        if found:
            return found
    return {}


def at_place(key: str, *, server: bool) -> Callable[[dict[str, Any]], float | None]:
    """A function of a row: the mean of a value over the sectors, or its value at the server."""

    def measure(row: dict[str, Any]) -> float | None:
        places = row.get("distill")
        nodes = places.items() if isinstance(places, dict) else ()
        inside = (values for node, values in nodes if (node == "server") == server and isinstance(values, dict))
        return mean(number(values.get(key)) for values in inside)

    return measure


def taught_sentence(group: MethodRuns, *, many: bool) -> str:
    """What distillation did in the last round, on the validation set, over the seeds."""
    parts = []
    for server, where in PLACES:
        ends = {}
        for key in ("teacher_accuracy", "student_before", "student_after"):
            curves = [run.curve(at_place(key, server=server)) for run in group.counted]
            ends[key] = mean(curve[-1][1] for curve in curves if curve)
        before, after, teacher = ends["student_before"], ends["student_after"], ends["teacher_accuracy"]
        if before is not None and after is not None:
            verb = "left" if abs(after - before) < NOTHING else "raised" if after > before else "lowered"
            change = f"the student at {percent(after)}" if verb == "left" else (
                f"the student from {percent(before)} to {percent(after)}")  # fmt: skip
            by = f" (teachers together: {percent(teacher)})" if teacher is not None else ""
            parts.append(f"{where} {verb} {change}{by}")
    whose = f"of {group.label} " if many else ""
    return f"In the last round, distillation {whose}{' and '.join(parts)}, on the validation set." if parts else ""


def verdicts(group: MethodRuns, node: str | None = None, *, server: bool = False) -> list[tuple[bool, float | None]]:
    """Whether each distillation was accepted, and by how much the teachers together were better than the start.

    Args:
        group: the runs.
        node: of one sector only; None for all places of the kind.
        server: at the server instead of at sectors.
    """
    found = []
    for place, values in _distillations(group):
        if (place == node) if node is not None else ((place == "server") == server):
            accepted = number(values.get("accepted"))
            ends = (number(values.get("teacher_accuracy")), number(values.get("student_before")))
            lead = None if ends[0] is None or ends[1] is None else ends[0] - ends[1]
            if accepted is not None:
                found.append((bool(accepted), lead))
    return found


def _distillations(group: MethodRuns) -> Iterator[tuple[str, dict[str, Any]]]:
    for run in group.counted:
        for row in run.rows:
            places = row.get("distill")
            for node, values in places.items() if isinstance(places, dict) else ():
                if isinstance(values, dict):
                    yield str(node), values


def guard_sentence(group: MethodRuns) -> str:
    """How often what was learnt was rejected, or lowered the student where there is no such check."""
    parts = []
    for server, where in PLACES:
        found = verdicts(group, server=server)
        rejected = [lead for accepted, lead in found if not accepted]
        times = "rounds" if server and len(group.counted) == 1 else "times"
        if not found:
            lowered = [change < -NOTHING for change in _changes(group, server)]
            if any(lowered):
                parts.append(f"lowered the student {where} in {count(sum(lowered))} of {count(len(lowered))} {times}")
        elif not rejected:
            parts.append(f"was accepted {where} in all {count(len(found))} {times}")
        else:
            part = f"was rejected {where} in {count(len(rejected))} of {count(len(found))} {times}"
            lead = mean(rejected)
            if lead is not None and abs(lead) >= NOTHING:
                side = "below" if lead < 0 else "above"
                part += f": the teachers' ensemble was {100 * abs(lead):.1f} points {side} the average"
            parts.append(part)
    return f"Distillation of {group.label} {'; it '.join(parts)} (on the validation set)." if parts else ""


def _changes(group: MethodRuns, server: bool) -> list[float]:
    """Student after minus student before, of each distillation that is not guarded."""
    ends = (
        (number(values.get("student_before")), number(values.get("student_after")))
        for node, values in _distillations(group)
        if (node == "server") == server and "accepted" not in values
    )
    return [after - before for before, after in ends if before is not None and after is not None]
