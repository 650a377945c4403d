"""Writes the measurements into docs/performance.md, between its markers.

python benchmarks/page.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import record

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
WORKS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, block in blocks().items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not mark.search(text):
            raise SystemExit(f"{PAGE.name} has no markers for {name}; add <!-- {name} --> and <!-- end -->")
        text = mark.sub(lambda match, block=block: f"{match[1]}{block}\n{match[2]}", text)
    PAGE.write_text(text, encoding="utf-8")


def blocks() -> dict[str, str]:
    """The text for each marker: the latest run of each work, and where the time goes."""
    rows = [json.loads(line) for line in (HERE / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    result = {}
    for work in WORKS:
        known = [row for row in rows if row.get("id") == work]
        if known:
            result[work] = measured([row for row in known if row.get("run") == known[-1].get("run")])
    where = HERE / "where.json"
    if where.exists():
        reports = json.loads(where.read_text(encoding="utf-8"))
        result |= {f"where {work}": spent(report) for work, report in reports.items()}
    return result


def measured(rows: list[dict[str, Any]]) -> str:
    """Table of all contestants in one run of a work."""
    reference, more = rows[-1]["reference"], record.columns(rows)
    head = ["", "seconds", f"× {reference}", "accuracy", *(title for title, _, _ in more)]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        accuracy = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"
        cells = [row["contestant"], f"{row['seconds']:.3g}", f"{row['ratio']:.2f}", accuracy]
        lines.append(cells + [format(row[key], form) if key in row else "" for _, key, form in more])
    last, most = rows[-1], max(row["repeats"] for row in rows)
    fewer = "".join(f" ({row['contestant']}: {row['repeats']})" for row in rows if row["repeats"] < most)
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    where = f"{last['machine']}, {last['date']}, commit {last['commit']}, load {last['load']:g}"
    where += f", median of {most} turns{fewer}"
    return f"{last['work']}\n\n{table}\n\n*{where}.*"


def spent(report: dict[str, Any]) -> str:
    """Tables of where the time of one work went."""
    parts = []
    for name in ("workers", "one client", "shares"):
        if name in report:
            workers = "both workers" if report.get("hands", 2) == 2 else "the only process"
            title = {"workers": f"of the time of {workers}", "one client": "of one client's training"}.get(
                name, f"of a run of {report['seconds']:.2f} s, {1000 * report.get('a round', 0):.1f} ms per round"
            )
            lines = [f"| {title} | share |", "|---|---|"]
            lines += [f"| {kind} | {100 * share:.1f} % |" for kind, share in report[name].items() if share >= 0.001]
            parts.append("\n".join(lines))
    if report.get("student"):
        parts.append(
            f"For {100 * report['student']:.1f} % of the time one worker trains the server's student on all cores, "
            "while the other worker is idle."
        )
    parts.append(f"*{report['machine']}, {report['date']}, commit {report['commit']}.*")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
