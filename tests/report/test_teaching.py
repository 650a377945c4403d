"""What distillation did, in sentences and by place, from rows made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.report import page_sections
from headwater.report.grouping import MethodRuns
from headwater.report.runs import RunRecord
from headwater.report.teaching import guard_sentence, verdicts


def runs(*rounds: dict[str, dict[str, Any]]) -> MethodRuns:
    rows = [{"round": at, "accuracy": 0.5, "distill": places} for at, places in enumerate(rounds, start=1)]
    return MethodRuns("FedX", (RunRecord(Path(), "FedX", "fedx", 0, {}, rows, {"accuracy": 0.5}, None),))


def place(accepted: float | None, teacher: float, before: float, after: float) -> dict[str, Any]:
    known = {} if accepted is None else {"accepted": accepted}
    alone = {"teachers": 2.0, "teacher_best": 0.4, "teacher_worst": 0.1, "by_teacher": {"c0": 0.4, "c1": 0.1}}
    return known | alone | {"teacher_accuracy": teacher, "student_before": before, "student_after": after}


def test_a_rejection_tells_by_how_much_the_teachers_were_worse() -> None:
    """Rejected with leads of -0.1 and -0.2: 15 points below on average; the accepted round does not count."""
    group = runs(
        {"server": place(0.0, 0.5, 0.6, 0.6)},
        {"server": place(0.0, 0.4, 0.6, 0.6)},
        {"server": place(1.0, 0.9, 0.6, 0.7)},
    )
    assert [accepted for accepted, _ in verdicts(group, server=True)] == [False, False, True]
    words = guard_sentence(group)
    assert (
        "was rejected at the server in 2 of 3 rounds: the teachers' ensemble was 15.0 points below the average" in words
    )


def test_sectors_and_server_are_told_apart() -> None:
    both = {"s0": place(1.0, 0.9, 0.6, 0.7), "s1": place(1.0, 0.9, 0.6, 0.7), "server": place(0.0, 0.7, 0.6, 0.6)}
    words = guard_sentence(runs(both, both))
    assert "was accepted at sectors in all 4 times; it was rejected at the server in 2 of 2 rounds" in words
    assert "10.0 points above the average" in words


def test_without_a_guard_it_tells_how_often_the_student_got_worse() -> None:
    group = runs({"server": place(None, 0.5, 0.6, 0.4)}, {"server": place(None, 0.5, 0.6, 0.8)})
    assert guard_sentence(group).startswith("Distillation of FedX lowered the student at the server in 1 of 2 rounds")
    assert guard_sentence(runs({"server": place(None, 0.5, 0.6, 0.8)})) == ""


def test_the_table_has_teachers_and_what_was_kept() -> None:
    group = runs({"server": place(0.0, 0.5, 0.6, 0.6)}, {"server": place(1.0, 0.5, 0.6, 0.7)})
    _, table = page_sections.teaching([group])
    assert table is not None
    row = dict(zip(table.heads, table.rows[0], strict=True))
    assert [row[head].value for head in ("Best teacher", "Worst teacher", "Teachers together")] == [0.4, 0.1, 0.5]
    assert row["Points gained"].value == pytest.approx(0.1)
    assert row["Accepted, all rounds"].text == "1 of 2"
