"""Run directories read back: the only door between a run and its report.

Nothing here touches a run that is under way: files are opened, read whole and closed. A run that was killed leaves a
last line that stops in the middle, or no `result.json`; both are normal and reported as an unfinished run.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.errors import UserError
from headwater.report.numbers import number

TIERS = ("server_sector", "sector_client")
DIRECTIONS = ("up", "down")
Measure = str | Callable[[dict[str, Any]], float | None]  # a key of a row, or what to make of the row


@dataclass(frozen=True)
class RunRecord:
    """One run as its directory tells it; can also be made by hand from a run that left nothing on disk."""

    path: Path
    label: str  # what a reader sees: the display name, else the method's name
    algorithm: str
    seed: int
    config: dict[str, Any]
    rows: list[dict[str, Any]]  # of rounds.jsonl, by round
    result: dict[str, Any] | None  # None until the run has finished
    partition: dict[str, Any] | None

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def planned(self) -> int | None:
        """Rounds the configuration asks for."""
        rounds = number(self.config.get("rounds"))
        return None if rounds is None else int(rounds)

    @property
    def done(self) -> int:
        """Rounds that left a row."""
        return int(self.rows[-1]["round"]) if self.rows else 0

    def curve(self, key: Measure = "accuracy") -> list[tuple[int, float]]:
        """(round, value) of the rounds in which this was measured."""
        find = key if callable(key) else lambda row: number(row.get(key))
        pairs = ((int(row["round"]), find(row)) for row in self.rows)
        return [(at, value) for at, value in pairs if value is not None]

    def traffic(self, tier: str = "server_sector") -> dict[int, float]:
        """Bytes both ways on a tier from the first round up to and including each round."""
        total, sums = 0.0, {}
        for row in self.rows:
            total += sum(moved(row, tier, direction) for direction in DIRECTIONS)
            sums[int(row["round"])] = total
        return sums

    @property
    def accuracy(self) -> float | None:
        """Of the final model; of the last one measured while the run is unfinished."""
        final = number((self.result or {}).get("accuracy"))
        curve = self.curve()
        return final if final is not None else curve[-1][1] if curve else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The run's own 95 % interval: what the size of its test set leaves open."""
        pair = (self.result or {}).get("accuracy_ci95")
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        low, high = number(pair[0]), number(pair[1])
        return None if low is None or high is None else (low, high)

    @property
    def best(self) -> float | None:
        """The highest accuracy seen in any round or at the end."""
        seen = [value for _, value in self.curve()]
        for value in (number((self.result or {}).get(key)) for key in ("best_accuracy", "accuracy")):
            if value is not None:
                seen.append(value)
        return max(seen, default=None)

    @property
    def seconds(self) -> float | None:
        """Wall time of the whole run, or of the rounds so far."""
        total = _summed((self.result or {}).get("seconds"))
        if total is not None:
            return total
        parts = [value for row in self.rows if (value := _summed(row.get("seconds"))) is not None]
        return sum(parts) if parts else None

    def sent(self, tier: str, direction: str) -> float | None:
        """All bytes of the run in one direction, without the setup; None if nobody counted."""
        told = number(self.ledger(tier).get(f"{direction}_bytes"))
        if told is not None:
            return told
        return sum(moved(row, tier, direction) for row in self.rows) if self.rows else None

    def ledger(self, part: str) -> dict[str, Any]:
        """One part of the finished run's ledger; empty when it is not there."""
        whole = (self.result or {}).get("ledger")
        found = whole.get(part) if isinstance(whole, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def setup(self) -> float | None:
        """Bytes given out once, before round 1."""
        whole = (self.result or {}).get("ledger")
        return tree_bytes(whole.get("setup")) if isinstance(whole, dict) else None

    def last(self, key: str) -> Any:
        """A value of the result, else of the newest row that has it."""
        found = (self.result or {}).get(key)
        if found is not None:
            return found
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), None)


def read(directory: Path) -> RunRecord:
    """The run that left this directory."""
    directory = Path(directory)
    file = directory / "config.toml"
    if not file.is_file():
        raise UserError(
            f"{str(directory)!r} holds no config.toml, so it is not the directory of a run; "
            "give a directory that `headwater run` or `headwater compare` has written"
        )
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{str(file)!r} is not valid TOML ({error}); restore it or leave this run out") from error
    result = _json(directory / "result.json")
    settings = config.get("algorithm")
    name = settings.get("name") if isinstance(settings, dict) else settings
    algorithm = str((result or {}).get("algorithm") or name or "unknown")
    seed = number((result or {}).get("seed", config.get("seed")))
    return RunRecord(
        path=directory,
        label=str((result or {}).get("label") or algorithm),
        algorithm=algorithm,
        seed=int(seed) if seed is not None else 0,
        config=config,
        rows=_rows(directory / "rounds.jsonl"),
        result=result,
        partition=_json(directory / "partition.json"),
    )


def find(dirs: Path | str | Iterable[Path | str]) -> list[RunRecord]:
    """All runs in the directories and, where one holds several, below them; each once, seed 2 before seed 10."""
    given = [dirs] if isinstance(dirs, Path | str) else list(dirs)
    found: dict[Path, RunRecord] = {}
    for item in map(Path, given):
        if not item.is_dir():
            raise UserError(
                f"there is no directory {str(item)!r}; give the --out directory of a run or of a comparison"
            )
        below = _below(item, set())
        if not below:
            raise UserError(
                f"no run was found in {str(item)!r} or below it (a run's directory has a config.toml); "
                "give the --out directory of a run or of a comparison"
            )
        for path in below:
            found.setdefault(path.resolve(), read(path))
    if not found:
        raise UserError("no directory was given; name one or more directories of runs")
    return list(found.values())


def moved(row: Mapping[str, Any], tier: str, direction: str) -> float:
    """Bytes of one round on a tier in one direction."""
    tiers = row.get("bytes")
    both = tiers.get(tier) if isinstance(tiers, dict) else None
    return (number(both.get(direction)) or 0.0) if isinstance(both, dict) else 0.0


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key in which the numbers inside a name count as numbers."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"[0-9]+|[^0-9]+", text)]


def _below(directory: Path, seen: set[Path]) -> list[Path]:
    if directory.resolve() in seen:  # a link that leads back up
        return []
    seen.add(directory.resolve())
    has_config = (directory / "config.toml").is_file()
    if has_config and any((directory / name).is_file() for name in ("rounds.jsonl", "result.json")):
        return [directory]
    inner = sorted((child for child in directory.iterdir() if child.is_dir()), key=lambda child: natural(child.name))
    runs = [path for child in inner for path in _below(child, seen)]
    # a config.toml with runs below it belongs to a sweep; alone, it is a run that has not ended its first round
    return runs or ([directory] if has_config else [])


def _rows(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    lines = [line for line in file.read_bytes().split(b"\n") if line.strip()]
    rows: dict[int, dict[str, Any]] = {}
    for at, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rounds = number(row["round"])
            if rounds is None:
                raise ValueError("no round number")
        except (ValueError, KeyError, TypeError) as error:
            if at == len(lines):  # the run was killed while it wrote this line
                break
            raise UserError(
                f"line {at} of {str(file)!r} is not a round's row ({error}); "
                "mend or delete that line, or leave this run out"
            ) from error
        rows[int(rounds)] = row  # a resumed run may write a round again: the newest counts
    return [rows[key] for key in sorted(rows)]


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{str(file)!r} is not valid JSON ({error}); "
            "resume the run to write it anew, or delete it to report the run without it"
        ) from error
    if not isinstance(found, dict):
        raise UserError(
            f"{str(file)!r} should hold a JSON object and holds a {type(found).__name__}; restore it or delete it"
        )
    return found


def _summed(value: Any) -> float | None:
    if isinstance(value, dict):
        parts = [part for part in map(number, value.values()) if part is not None]
        return sum(parts) if parts else None
    return number(value)


def tree_bytes(value: Any) -> float | None:
    """A part of the ledger as one number: it is one, or a tree of them whose leaves that count bytes are added."""
    if not isinstance(value, dict):
        return number(value)
    parts = [
        found
        for key, inner in value.items()
        if (isinstance(inner, dict) or not str(key).endswith(("models", "trips")))
        and (found := tree_bytes(inner)) is not None
    ]
    return sum(parts) if parts else 0.0
