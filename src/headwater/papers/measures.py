"""What a cell of a table shows, read from the directory of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from headwater.errors import ConfigError, nearest
from headwater.report.numbers import number
from headwater.report.runs import RunRecord
from headwater.sweep import Asked

LAST = {
    "accuracy": "accuracy",
    "best_accuracy": "best_accuracy",
    "local_accuracy": "local_accuracy",
    "ensemble_accuracy": "ensemble_accuracy",
    "before_fusion": "average_accuracy",
    "after_fusion": "accuracy",
}  # shares of right answers: the key of a result or, if it has none, of the last round that has it
COUNTS = ("parameters_held", "seconds_per_client", "public_samples", "communication", "teachers")
WITH_NUMBER = ("rounds_to", "accuracy_at", "accuracy_of")
NAMES = (*LAST, *COUNTS, *(f"{name}:<number>" for name in WITH_NUMBER))
CLIENT = re.compile(r"c\d+")
FEWER = ("rounds_to", *COUNTS)  # the less, the better


@dataclass(frozen=True)
class Measure:
    """`number` is the target of rounds_to, in per cent or as a share; the round of accuracy_at; for accuracy_of,
    which of the further networks (model.also) is meant, from 1 on."""

    name: str
    number: float | None = None

    @staticmethod
    def of(text: str) -> Measure:
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
        return self.name in FEWER

    @property
    def needs_every_round(self) -> bool:
        """Whether models in between have to be judged as well."""
        return self.name in ("rounds_to", "accuracy_at", "best_accuracy")

    def factor(self, unit: str) -> float:
        """What a value is multiplied with to be in a unit."""
        share = self.name in LAST or self.name in ("accuracy_at", "accuracy_of")
        return 100.0 if share and unit == "%" else 1e-6 if unit == "M" else 1.0

    def key(self, run: RunRecord) -> str:
        """Where a round's row has what this is made of."""
        if self.name == "accuracy_of":
            others, which = list(run.config["model"].get("also", ())), int(self.number or 0)
            return f"{others[which - 1]}_accuracy" if which <= len(others) else ""
        return LAST.get(self.name, "accuracy")

    def value(self, run: RunRecord) -> float | None:
        """Of a finished run; None where it has no such number, or a target was not reached."""
        if self.name in LAST or self.name == "accuracy_of":
            return number(run.last(self.key(run)))
        if self.name == "accuracy_at":
            return dict(run.curve()).get(int(self.number or 0))
        if self.name == "rounds_to":
            target = (self.number or 0) / (100 if (self.number or 0) > 1 else 1)
            return next((float(at) for at, reached in run.curve() if reached >= target), None)
        return COUNTED[self.name](run)


def seconds_per_client(run: RunRecord) -> float | None:
    """Time that a client trains in a round, over all of them that did."""
    spent: dict[tuple[int, str], float] = {}
    try:
        lines = (run.path / "timeline.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        span = json.loads(line)
        if span["phase"] in ("train", "distill") and CLIENT.fullmatch(span["node"]):
            key = (span["round"], span["node"])
            spent[key] = spent.get(key, 0.0) + span["end"] - span["start"]
    return fmean(spent.values()) if spent else None


def communication(run: RunRecord) -> float | None:
    """Models that cross the long link each way for a round trip: 1 where one goes down and one comes back."""
    sums = [number(run.ledger("server_sector").get(key)) or 0.0 for key in ("up_models", "down_models", "round_trips")]
    return (sums[0] + sums[1]) / (2 * sums[2]) if sums[2] else None


def teachers(run: RunRecord) -> float | None:
    """Models that a student at the server was taught by in the last round that taught one."""
    told = (row.get("distill", {}).get("server", {}).get("teachers") for row in reversed(run.rows))
    return next((found for each in told if (found := number(each)) is not None), None)


def _fact(name: str) -> Callable[[RunRecord], float | None]:
    def read(run: RunRecord) -> float | None:
        asked = Asked.read(run.path)
        return None if asked is None else number(asked.facts.get(name))

    return read


COUNTED: dict[str, Callable[[RunRecord], float | None]] = {
    "parameters_held": _fact("parameters_held"),
    "seconds_per_client": seconds_per_client,
    "public_samples": _fact("public_samples"),
    "communication": communication,
    "teachers": teachers,
}
