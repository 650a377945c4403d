"""Write what was measured into docs/performance.md, between its marks.

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
            raise SystemExit(f"{PAGE.name} has no place for {name}: it needs <!-- {name} --> and <!-- end -->")
        text = mark.sub(lambda found, block=block: f"{found[1]}{block}\n{found[2]}", text)
    PAGE.write_text(text, encoding="utf-8")


def blocks() -> dict[str, str]:
    rows = [json.loads(line) for line in (HERE / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {}
    for work in WORKS:
        known = [row for row in rows if row.get("id") == work]
        if known:
            found[work] = measured([row for row in known if row.get("run") == known[-1].get("run")])
    where = HERE / "where.json"
    if where.exists():
        found |= {f"where {work}": spent(told) for work, told in json.loads(where.read_text(encoding="utf-8")).items()}
    return found


def measured(rows: list[dict[str, Any]]) -> str:
    """All contestants of one run of a work."""
    reference, more = rows[-1]["reference"], record.columns(rows)
    head = ["", "seconds", f"× {reference}", "accuracy", *(title for title, _, _ in more)]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        accuracy = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"
        cells = [row["contestant"], f"{row['seconds']:.3g}", f"{row['ratio']:.2f}", accuracy]
        lines.append(cells + [format(row[key], form) if key in row else "" for _, key, form in more])
    told, most = rows[-1], max(row["repeats"] for row in rows)
    once = "".join(f" ({row['contestant']}: {row['repeats']})" for row in rows if row["repeats"] < most)
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    where = f"{told['machine']}, {told['date']}, commit {told['commit']}, load {told['load']:g}"
    where += f", median of {most} turns{once}"
    return f"{told['work']}\n\n{table}\n\n*{where}.*"


def spent(told: dict[str, Any]) -> str:
    parts = []
    for name in ("workers", "one client", "shares"):
        if name in told:
            whose = "both workers" if told.get("hands", 2) == 2 else "the process that does all of it"
            title = {"workers": f"of the time of {whose}", "one client": "of one client's training"}.get(
                name, f"of a run of {told['seconds']:.2f} s, {1000 * told.get('a round', 0):.1f} ms a round"
            )
            lines = [f"| {title} | share |", "|---|---|"]
            lines += [f"| {kind} | {100 * share:.1f} % |" for kind, share in told[name].items() if share >= 0.001]
            parts.append("\n".join(lines))
    if told.get("student"):
        parts.append(
            f"For {100 * told['student']:.1f} % of the time the server's student is taught on all cores by one worker, "
            "while the other has nothing to do."
        )
    parts.append(f"*{told['machine']}, {told['date']}, commit {told['commit']}.*")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
