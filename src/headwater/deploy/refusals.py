"""What a party refused to do, in state/refused.json; `headwater deploy audit` lists it.

Who asks for something else than the agreed method may ask often, so equal refusals are counted and not listed, and only
so many different ones are kept.
"""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.records import parse_json

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder

FILE = "refused.json"
MOST = 200  # different refusals that are kept
LONGEST = 300  # characters of the reason, parts of which come from another party
OTHERS = "further reasons"


class RefusedLog:
    """Counts refusals by who asked and why."""

    def __init__(self, folder: PartyFolder) -> None:
        self._path, self._guard = folder.state / FILE, threading.Lock()
        self._rows = {(row["by"], row["why"]): row for row in refusals(folder.state)}

    def add(self, round: int, by: str, why: str) -> None:
        """Count one refusal.

        Args:
            by: the party that asked.
            why: the sentence that was logged; numbers in the names of values are left out.
        """
        why = "".join(char if char.isprintable() else "?" for char in re.sub(r"'\d+\.\d+\.", "'", why))[:LONGEST]
        with self._guard:
            key = (by, why if (by, why) in self._rows or len(self._rows) < MOST else OTHERS)
            row = self._rows.setdefault(key, {"by": by, "why": key[1], "count": 0, "rounds": [round, round]})
            row["count"] += 1
            row["rounds"] = [min(row["rounds"][0], round), max(row["rounds"][1], round)]
            row["last"] = time.time_ns() // 1_000_000 / 1000
            draft = self._path.with_name(f".{FILE}.draft")
            draft.write_text(json.dumps([*self._rows.values()]), encoding="utf-8")
            draft.replace(self._path)


def refusals(state: Path) -> list[dict[str, Any]]:
    """The refusals of a party, the most frequent first; none if there is no readable file."""
    try:
        rows = parse_json((state / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    found = [row for row in rows if _is_row(row)] if isinstance(rows, list) else []
    return sorted(found, key=lambda row: (-row["count"], row["by"], row["why"]))


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(key), str) for key in ("by", "why"))
        and isinstance(row.get("count"), int)
        and isinstance(row.get("rounds"), list)
        and len(row["rounds"]) == 2
    )
