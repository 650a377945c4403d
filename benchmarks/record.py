"""What was found, as a table for people and as JSON lines for the history."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HISTORY = Path(__file__).parent / "history.jsonl"
Answers = dict[str, list[dict[str, Any]]]
OURS, BEST = "Headwater", "Headwater, best settings"  # as it is without a word about engines, and tuned


@dataclass(frozen=True)
class Claim:
    """`who` takes at most `most` times what `than` takes (the fastest of several, where several are named), `plus` so
    many seconds; where nobody is named, at most so many seconds."""

    most: float
    than: tuple[str, ...] = ()
    who: str = OURS
    plus: float = 0.0
    what: str = "seconds"  # or "cpu_seconds"; or "memory", of which it may be `most` MB more

    def told(self, answers: Answers) -> str:
        """A sentence: what was found and what was wanted."""
        known = [name for name in self.than if name in answers]
        if self.who not in answers or (self.than and not known):
            return f"{self.who} against {' or '.join(self.than)}: not measured"
        for name in self.than:
            if name not in answers:
                return f"NO   {name} was not measured, so {self.who} cannot be said to be faster than all"
        mine = median(answers, self.who, self.what)
        if not self.than:
            return _verdict(f"{self.who} takes {mine:.3g} s", mine, self.most, " s")
        best = min(known, key=lambda name: median(answers, name, self.what))
        if self.what == "memory":
            more = mine - median(answers, best, "memory")
            return _verdict(f"{self.who} holds {more:.0f} MB more than {best}", more, self.most, " MB")
        if self.plus:
            bound = self.most * median(answers, best) + self.plus
            said = f"{self.who} takes {mine:.3g} s, and {self.most:g} × {best} + {self.plus:g} s are {bound:.3g} s"
            return _verdict(said, mine, bound, " s")
        found = ratio(answers, self.who, best, self.what)
        of = ", in CPU time" if self.what == "cpu_seconds" else ""
        return _verdict(f"{self.who} takes {found:.3g} × {best}{of}", found, self.most)


def _verdict(said: str, found: float, most: float, unit: str = "") -> str:
    return f"{'yes' if found <= most else 'NO '}  {said} (wanted: at most {most:.3g}{unit})"


def median(answers: Answers, name: str, what: str = "seconds") -> float:
    return statistics.median(each[what] for each in answers[name])


def ratio(answers: Answers, name: str, to: str, what: str = "seconds") -> float:
    """The median over turns that lie side by side: what slows the machine down slows down both."""
    pairs = [(a[what], b[what]) for a, b in zip(answers[name], answers[to], strict=False)]
    return statistics.median(a / b for a, b in pairs)


def rows_of(work: str, title: str, answers: Answers, reference: str, cpu: bool = False) -> list[dict[str, Any]]:
    """`cpu`: the ratio of CPU times too, for a work that is judged by it."""
    reference = reference if reference in answers else next(iter(answers))
    rows = []
    for name, turns in answers.items():
        row: dict[str, Any] = {
            "id": work,
            "work": title,
            "contestant": name,
            "seconds": _short(median(answers, name)),
            "ratio": round(ratio(answers, name, reference), 3),
            "reference": reference,
            "accuracy": turns[-1].get("accuracy"),
            "repeats": len(turns),
            "each": [_short(turn["seconds"]) for turn in turns],
        }
        for key in ("memory", "pss", "with_preparation", "cpu_seconds"):
            if key in turns[0]:
                row[key] = _short(median(answers, name, key))
        if cpu and "cpu_seconds" in row:
            row["cpu_ratio"] = round(ratio(answers, name, reference, "cpu_seconds"), 3)
        rows.append(row)
    return rows


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def table(rows: Sequence[dict[str, Any]], unit: str) -> str:
    """The rows of one work."""
    head = ["contestant", unit, f"ratio to {rows[0]['reference']}", "accuracy", "repeats"]
    body = [
        [
            row["contestant"],
            f"{row['seconds']:.4g}",
            f"{row['ratio']:.2f}",
            "" if row["accuracy"] is None else f"{row['accuracy']:.4f}",
            str(row["repeats"]),
        ]
        for row in rows
    ]
    for title, key, form in columns(rows):
        head.append(title)
        for row, cells in zip(rows, body, strict=True):
            cells.append(format(row[key], form) if key in row else "")
    widths = [max(len(cells[i]) for cells in [head, *body]) for i in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) if not i else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        for cells in [head, *body]
    ]
    return "\n".join(lines)


def columns(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What a table shows beside times and accuracies, where some row has it: title, key and form."""
    reference = rows[-1]["reference"]
    known = [("peak MB", "memory", ".0f"), ("PSS MB", "pss", ".0f")]
    if any("cpu_ratio" in row for row in rows):
        known = [("CPU s", "cpu_seconds", ".3g"), (f"CPU × {reference}", "cpu_ratio", ".2f"), *known]
    return [each for each in known if any(each[1] in row for row in rows)]


def about() -> dict[str, str]:
    """Where and when."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=HISTORY.parent).stdout.strip()

    beside = ("..", ":(exclude)history.jsonl", ":(exclude)where.json", ":(exclude)plan_accuracy.*", ":(exclude)../docs")
    changed = "+" if git("status", "--porcelain", "--untracked-files=no", "--", *beside) else ""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": git("rev-parse", "--short", "HEAD") + changed,  # + marks work that is not in a commit yet
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }


def load() -> float:
    """How many processes want a core now."""
    return round(os.getloadavg()[0], 1)


def keep(rows: Sequence[dict[str, Any]], where: dict[str, Any]) -> None:
    """`where` was taken before anything was measured."""
    with HISTORY.open("a", encoding="utf-8") as history:
        for row in rows:
            history.write(json.dumps(where | row) + "\n")
