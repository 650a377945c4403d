"""Reads run directories. Reports get everything they show from here.

A running run is not disturbed: files are opened, read whole and closed. A run that was killed may leave an incomplete
last line, or no `result.json`; both are accepted, and the run counts as unfinished.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.records import parse_json, parse_toml
from headwater.errors import UserError
from headwater.report.numbers import number

ROWS = "rounds.jsonl"
TIERS = ("server_sector", "sector_client")
DIRECTIONS = ("up", "down")
TUNING = "tuning"  # directory of short runs that choose settings; they are no results
RowValue = str | Callable[[dict[str, Any]], float | None]  # a key of a row, or a function of it


@dataclass(frozen=True)
class RunRecord:
    """One run, read from its directory or created from a run that wrote no files.

    Args:
        path: the directory; `Path()` if there is none.
        label: display name of the method, else its name.
        algorithm: name of the method.
        seed: the seed.
        config: the configuration, as nested tables.
        rows: rows of rounds.jsonl, by round.
        result: contents of result.json; None until the run has finished.
        partition: contents of partition.json, if there is one.
        cut: whether the last line of rounds.jsonl is incomplete.
    """

    path: Path
    label: str
    algorithm: str
    seed: int
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any] | None
    partition: dict[str, Any] | None
    cut: bool = False

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def planned(self) -> int | None:
        """Number of rounds in the configuration."""
        rounds = number(self.config.get("rounds"))
        return None if rounds is None else int(rounds)

    @property
    def done(self) -> int:
        """The last round with a row; 0 if there is none."""
        return int(self.rows[-1]["round"]) if self.rows else 0

    @property
    def damage(self) -> str:
        """A sentence if rounds.jsonl is cut short or lacks rows; else an empty text."""
        last = int(number((self.result or {}).get("rounds")) or self.done)
        known = {at for row in self.rows if 1 <= (at := int(row["round"])) <= last}
        missing, first = last - len(known), next(at for at in range(1, last + 2) if at not in known)  # last may be huge
        if missing <= 0 and not self.cut:
            return ""
        what = f"lacks {missing} of {last} rounds, the first is {first}" if missing > 0 else "ends in half a line"
        way = "restore it or repeat the run" if self.finished else "resume the run to write them again"
        return f"{self.path / ROWS} is cut or damaged ({what}), so this report lacks these rounds; {way}"

    def curve(self, key: RowValue = "accuracy") -> list[tuple[int, float]]:
        """(round, value) of the rounds that have this value."""
        find = key if callable(key) else lambda row: number(row.get(key))
        pairs = ((int(row["round"]), find(row)) for row in self.rows)
        return [(at, value) for at, value in pairs if value is not None]

    def traffic(self, tier: str = "server_sector") -> dict[int, float]:
        """Bytes in both directions on a tier, accumulated up to and including each round."""
        total, sums = 0.0, {}
        for row in self.rows:
            total += sum(moved(row, tier, direction) for direction in DIRECTIONS)
            sums[int(row["round"])] = total
        return sums

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the final model or, while the run is unfinished, of the last measured one."""
        final = number((self.result or {}).get("accuracy"))
        curve = self.curve()
        return final if final is not None else curve[-1][1] if curve else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The run's 95 % interval over its test set."""
        pair = (self.result or {}).get("accuracy_ci95")
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        low, high = number(pair[0]), number(pair[1])
        return None if low is None or high is None else (low, high)

    @property
    def best(self) -> float | None:
        """Test accuracy of the round that was best on the validation set; the last one while the run is unfinished.

        Results of version 0.2 and before have that of the round that was best on the test set.
        """
        found = number((self.result or {}).get("best_accuracy"))
        return self.accuracy if found is None else found

    @property
    def seconds(self) -> float | None:
        """Wall time of the whole run, or of the rounds so far."""
        total = _summed((self.result or {}).get("seconds"))
        if total is not None:
            return total
        parts = [value for row in self.rows if (value := _summed(row.get("seconds"))) is not None]
        return sum(parts) if parts else None

    def sent(self, tier: str, direction: str) -> float | None:
        """Bytes of the whole run in one direction, without the setup; None if they were not counted."""
        total = number(self.ledger(tier).get(f"{direction}_bytes"))
        if total is not None:
            return total
        return sum(moved(row, tier, direction) for row in self.rows) if self.rows else None

    def ledger(self, part: str) -> dict[str, Any]:
        """One part of the ledger of a finished run; empty if it is missing."""
        whole = (self.result or {}).get("ledger")
        found = whole.get(part) if isinstance(whole, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def setup(self) -> float | None:
        """Bytes sent once, before round 1."""
        whole = (self.result or {}).get("ledger")
        return tree_bytes(whole.get("setup")) if isinstance(whole, dict) else None

    def last(self, key: str) -> Any:
        """A value of the result, else of the last row that has it."""
        found = (self.result or {}).get(key)
        if found is not None:
            return found
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), None)


def read(directory: Path) -> RunRecord:
    """Read the run in a directory.

    Raises:
        UserError: if the directory holds no run or a damaged one.
    """
    directory = Path(directory)
    file = directory / "config.toml"
    if not file.is_file():
        raise UserError(
            f"{str(directory)!r} holds no config.toml, so it is not the directory of a run; "
            "give a directory that `headwater run` or `headwater compare` has written"
        )
    try:
        config = parse_toml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{str(file)!r} is not valid TOML ({error}); restore it or leave this run out") from error
    result, (rows, cut) = _json(directory / "result.json"), _rows(directory / ROWS)
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
        rows=rows,
        result=result,
        partition=_json(directory / "partition.json"),
        cut=cut,
    )


def find(dirs: Path | str | Iterable[Path | str]) -> list[RunRecord]:
    """All runs in and below directories, each once, in natural order (seed 2 before seed 10).

    Raises:
        UserError: if a directory does not exist or holds no run.
    """
    tops = [dirs] if isinstance(dirs, Path | str) else list(dirs)
    found: dict[Path, RunRecord] = {}
    for item in map(Path, tops):
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
        raise UserError("name one or more directories of runs")
    return list(found.values())


def moved(row: Mapping[str, Any], tier: str, direction: str) -> float:
    """Bytes of one round on a tier in one direction."""
    tiers = row.get("bytes")
    both = tiers.get(tier) if isinstance(tiers, dict) else None
    return (number(both.get(direction)) or 0.0) if isinstance(both, dict) else 0.0


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key that orders the numbers inside names by value."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"[0-9]+|[^0-9]+", text)]


def _below(directory: Path, seen: set[Path]) -> list[Path]:
    if directory.resolve() in seen:  # a symbolic link to a directory above
        return []
    seen.add(directory.resolve())
    has_config = (directory / "config.toml").is_file()
    if has_config and any((directory / name).is_file() for name in (ROWS, "result.json")):
        return [directory]
    folders = (child for child in directory.iterdir() if child.is_dir() and child.name != TUNING)
    inner = sorted(folders, key=lambda child: natural(child.name))
    runs = [path for child in inner for path in _below(child, seen)]
    # A config.toml with runs below it belongs to a sweep; without, it is a run that has not finished its first round.
    return runs or ([directory] if has_config else [])


def _rows(file: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows by round, and whether the last line is incomplete."""
    if not file.is_file():
        return [], False
    lines = [line for line in file.read_bytes().split(b"\n") if line.strip()]
    rows: dict[int, dict[str, Any]] = {}
    cut = False
    for at, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
            rounds = number(row["round"])
            if rounds is None:
                raise ValueError("no round number")
        except (ValueError, KeyError, TypeError) as error:
            if at == len(lines):  # the run was killed while writing this line
                cut = True
                break
            raise UserError(
                f"line {at} of {str(file)!r} is not a round's row ({error}); "
                "repair or delete that line, or leave this run out"
            ) from error
        rows[int(rounds)] = row  # a resumed run may write a round again; the last row counts
    return [rows[key] for key in sorted(rows)], cut


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        found = parse_json(file.read_bytes())
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
    """Total bytes of a part of the ledger: a number or nested dicts, where counts of models and trips are ignored."""
    if not isinstance(value, dict):
        return number(value)
    parts = [
        found
        for key, inner in value.items()
        if (isinstance(inner, dict) or not str(key).endswith(("models", "trips")))
        and (found := tree_bytes(inner)) is not None
    ]
    return sum(parts) if parts else 0.0
