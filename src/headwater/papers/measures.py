"""What a cell of a table measures, read from a run directory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import fmean

from headwater.config.sections import network
from headwater.errors import ConfigError, nearest
from headwater.report import timeline
from headwater.report.numbers import number
from headwater.report.runs import RunRecord
from headwater.sweep import CellFile

# Metrics that are accuracies, and their key in result.json or, if it is not there, in the last row that has it.
LAST = {
    "accuracy": "accuracy",
    "best_accuracy": "best_accuracy",
    "local_accuracy": "local_accuracy",
    "ensemble_accuracy": "ensemble_accuracy",
    "before_fusion": "average_accuracy",
    "after_fusion": "accuracy",
}
COUNTS = ("parameters_held", "seconds_per_client", "public_samples", "communication", "round_trips", "teachers")
WITH_NUMBER = ("rounds_to", "accuracy_at", "accuracy_of")
NAMES = (*LAST, *COUNTS, *(f"{name}:<number>" for name in WITH_NUMBER))
CLIENT = re.compile(r"c\d+")
LOWER_IS_BETTER = ("rounds_to", *COUNTS)


@dataclass(frozen=True)
class Measure:
    """A metric of a column, such as `accuracy` or `rounds_to:80`.

    Args:
        name: name of the metric.
        number: for rounds_to, the target accuracy in per cent or as a share; for accuracy_at, the round; for
            accuracy_of, the position in model.also, from 1 on.
    """

    name: str
    number: float | None = None

    @staticmethod
    def of(text: str) -> Measure:
        """Parse `name` or `name:number`."""
        name, colon, rest = text.partition(":")
        if name in WITH_NUMBER and re.fullmatch(r"\d+(\.\d+)?", rest) and float(rest) > 0:
            return Measure(name, float(rest))
        if colon or name not in (*LAST, *COUNTS):
            raise ConfigError(
                f"there is no metric {text!r}{nearest(text, [*LAST, *COUNTS, *WITH_NUMBER])} "
                f"(there are: {', '.join(NAMES)})"
            )
        return Measure(name)

    @property
    def text(self) -> str:
        return self.name if self.number is None else f"{self.name}:{self.number:g}"

    @property
    def lower_is_better(self) -> bool:
        return self.name in LOWER_IS_BETTER

    @property
    def needs_every_round(self) -> bool:
        """Whether the model must be evaluated in every round, not only at the end."""
        return self.name in ("rounds_to", "accuracy_at", "best_accuracy")

    @property
    def share(self) -> bool:
        """Whether it is an accuracy."""
        return self.name in LAST or self.name in ("accuracy_at", "accuracy_of")

    def factor(self, unit: str) -> float:
        """Factor that converts a value to a unit."""
        return 100.0 if self.share and unit == "%" else 1e-6 if unit == "M" else 1.0

    def range(self, unit: str) -> tuple[float, float]:
        """The smallest and the largest value in a unit."""
        return (0.0, self.factor(unit)) if self.share else (0.0, inf)

    def key(self, run: RunRecord) -> str:
        """Key of a row of rounds.jsonl that this metric is derived from."""
        if self.name == "accuracy_of":
            others = [network(entry)[0] for entry in run.config["model"].get("also", ())]
            which = int(self.number or 0)
            return f"{others[which - 1]}_accuracy" if which <= len(others) else ""
        return LAST.get(self.name, "accuracy")

    def value(self, run: RunRecord) -> float | None:
        """The value for a finished run; None if it has none, or a target was not reached."""
        if self.name in LAST or self.name == "accuracy_of":
            return number(run.last(self.key(run)))
        if self.name == "accuracy_at":
            return dict(run.curve()).get(int(self.number or 0))
        if self.name == "rounds_to":
            target = (self.number or 0) / (100 if (self.number or 0) > 1 else 1)
            return next((float(at) for at, reached in run.curve() if reached >= target), None)
        return COUNTED[self.name](run)


def seconds_per_client(run: RunRecord) -> float | None:
    """Mean time that a client trains per round, over the clients that took part."""
    spent: dict[tuple[int, str], float] = {}
    for span in timeline.read(run):
        if span["phase"] in ("train", "distill") and CLIENT.fullmatch(span["node"]):
            key = (span["round"], span["node"])
            spent[key] = spent.get(key, 0.0) + span["end"] - span["start"]
    return fmean(spent.values()) if spent else None


def communication(run: RunRecord) -> float | None:
    """Models per direction and round trip between server and sectors: 1 if one goes down and one comes back."""
    sums = [number(run.ledger("server_sector").get(key)) or 0.0 for key in ("up_models", "down_models", "round_trips")]
    return (sums[0] + sums[1]) / (2 * sums[2]) if sums[2] else None


def round_trips(run: RunRecord) -> float | None:
    """Round trips between server and sectors (or clients) per round."""
    trips = number(run.ledger("server_sector").get("round_trips"))
    return trips / len(run.rows) if trips is not None and run.rows else None


def teachers(run: RunRecord) -> float | None:
    """Number of teachers at the server in the last round that had any."""
    counts = (number(row.get("distill", {}).get("server", {}).get("teachers")) for row in reversed(run.rows))
    return next((count for count in counts if count is not None), None)


def _fact(name: str) -> Callable[[RunRecord], float | None]:
    def read_fact(run: RunRecord) -> float | None:
        file = CellFile.read(run.path)
        return None if file is None else number(file.facts.get(name))

    return read_fact


COUNTED: dict[str, Callable[[RunRecord], float | None]] = {
    "parameters_held": _fact("parameters_held"),
    "seconds_per_client": seconds_per_client,
    "public_samples": _fact("public_samples"),
    "communication": communication,
    "round_trips": round_trips,
    "teachers": teachers,
}
