"""What partition.json and the runs say about clients, sectors and classes, checked and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.report.numbers import number
from headwater.report.runs import RunRecord

MOST_CLIENTS = 400
MOST_DOTS = 6000  # beyond either a page becomes slow; sectors are shown in place of clients


@dataclass(frozen=True)
class Holding:
    """Samples by column and class; a column is a client, or a sector when there are too many clients to draw."""

    names: list[str]
    sectors: list[int]  # of each column, ascending
    counts: list[list[float]]
    classes: list[str]
    by_client: bool
    counted: tuple[int, int] | None = None  # the first so many of so many clients, if not all of them
    called: Callable[[str, int], str] = "{} {}".format  # "client", 3 → what the data calls it

    @classmethod
    def of(cls, partition: Mapping[str, Any] | None) -> Holding | None:
        """None when the file is missing or holds no counts."""
        rows = (partition or {}).get("counts")
        if (
            partition is None
            or not isinstance(rows, list)
            or not rows
            or not all(isinstance(row, list) for row in rows)
        ):
            return None
        counts = [[number(value) or 0.0 for value in row] for row in rows]
        classes = class_names(partition.get("classes"), max(map(len, counts)))
        counts = [row + [0.0] * (len(classes) - len(row)) for row in counts]
        known, told = client_sectors(partition), (_counted(partition.get("counted")), caller(partition))
        sectors = [known.get(client, 0) for client in range(len(counts))]
        order = sorted(range(len(counts)), key=lambda client: (sectors[client], client))
        if len(counts) <= MOST_CLIENTS and sum(value > 0 for row in counts for value in row) <= MOST_DOTS:
            names = [str(at) for at in order]
            return cls(names, [sectors[at] for at in order], [counts[at] for at in order], classes, True, *told)
        places = sorted(set(sectors))
        inside = [[counts[at] for at in order if sectors[at] == place] for place in places]
        sums = [[sum(column) for column in zip(*rows, strict=True)] for rows in inside]
        return cls([str(place) for place in places], places, sums, classes, False, *told)


def _counted(given: Any) -> tuple[int, int] | None:
    first, registered = (number(given.get(key)) for key in ("first", "of")) if isinstance(given, dict) else (None, None)
    return None if first is None or registered is None else (int(first), int(registered))


class _Numbered(Mapping[int, int]):
    """The sectors of very many clients, which are not made into a dict."""

    def __init__(self, sectors: tuple[int, ...]) -> None:
        self._sectors = sectors

    def __getitem__(self, client: int) -> int:
        if not 0 <= client < len(self._sectors):
            raise KeyError(client)
        return self._sectors[client]

    def __len__(self) -> int:
        return len(self._sectors)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._sectors)))


def client_sectors(partition: Mapping[str, Any] | None) -> Mapping[int, int]:
    """The sector of each client that the file knows of."""
    given = (partition or {}).get("sectors")
    if isinstance(given, str):
        from headwater.partition.base import unpack  # needs NumPy, which few reports do

        try:
            return _Numbered(unpack(given))
        except ValueError:
            return {}
    pairs = enumerate(map(number, given)) if isinstance(given, list) else ()
    return {client: int(sector) for client, sector in pairs if sector is not None}


def caller(partition: Mapping[str, Any] | None) -> Callable[[str, int], str]:
    """What a client or sector of this number is called: as the data has it, else "client 3", "sector 0"."""
    known = {
        kind: [str(name) for name in given]
        for kind in ("client", "sector")
        if isinstance(given := (partition or {}).get(f"{kind}_names"), list)
    }

    def called(kind: str, at: int) -> str:
        names = known.get(kind, [])
        return f"{kind} {names[at] if 0 <= at < len(names) else at}"

    return called


def class_names(given: Any, size: int) -> list[str]:
    """The names of the classes, numbers where there are none."""
    known = [str(name) for name in given] if isinstance(given, list) else []
    return [known[at] if at < len(known) else str(at) for at in range(size)]


def client_accuracy(run: RunRecord) -> dict[str, float]:
    """What the run recorded for each client last; clients without data have no number and are left out."""
    found = run.last("client_accuracy")
    pairs = found.items() if isinstance(found, dict) else ()
    return {str(name): value for name, raw in pairs if (value := number(raw)) is not None}
