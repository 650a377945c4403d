"""Tables of what simple attacks learn, from experiments/leaks/obtained.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean

from headwater.core.statistics import mean_interval
from proof_tables import table

OBTAINED = Path(__file__).parent.parent / "experiments" / "leaks" / "obtained.csv"
ATTACKS = ("loss", "calibrated")
REBUILT = ("analytic", "searched")
NUMBERS = (
    *(f"{attack}_{key}" for attack in ATTACKS for key in ("auc", "advantage")),
    *(f"{attack}_{key}" for attack in REBUILT for key in ("similarity", "control", "baseline")),
)
PARTIES = {"server": "server", "sector": "host", "leader": "leader"}
WHOSE = {"client": "each client", "sector": "a sector", "several": "all"}
NOTHING = "no model"
SHOWN = {  # protections of the short table: the first that a method accepts of each kind
    "none": ("none",),
    "sums": ("secure = both", "secure = server", "secure = sectors"),
    "noise": ("noise = 0.02",),
    "row noise": ("row_noise = 1",),
}
Row = dict[str, str]
Rows = list[Row]


def read(path: Path = OBTAINED) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def picked(rows: Iterable[Row], **wanted: str) -> Rows:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def closest(rows: Rows) -> tuple[str, Rows]:
    """Whose models a party held at the closest, and the rows about these."""
    for whose in WHOSE:
        if found := [row for row in picked(rows, whose=whose) if row["part"] in ("", "model")]:
            return whose, found
    return "", []


def by_seed(rows: Rows, column: str) -> list[float]:
    """The mean of a column for each seed."""
    seeds = dict.fromkeys(row["seed"] for row in rows)
    found = ([float(row[column]) for row in rows if row["seed"] == seed and row[column]] for seed in seeds)
    return [fmean(values) for values in found if values]


def rate(rows: Rows, column: str) -> str:
    """Mean over seeds with its 95 % interval."""
    values = by_seed(rows, column)
    if not values:
        return ""
    middle, half = mean_interval(values)
    return f"{middle:.2f}" if half is None else f"{middle:.2f} ± {half:.2f}"


def likeness(rows: Rows, attack: str) -> str:
    """Similarity of guesses and clients' rows; in brackets that of the same guesses and rows that nobody trained on."""
    same, other = (by_seed(rows, f"{attack}_{key}") for key in ("similarity", "control"))
    return f"{fmean(same):.2f} ({fmean(other):.2f})" if same else ""


def best_likeness(rows: Rows) -> str:
    """That of the attack whose guesses stand out most from the control."""
    gains = {}
    for attack in REBUILT:
        if same := by_seed(rows, f"{attack}_similarity"):
            gains[attack] = fmean(same) - fmean(by_seed(rows, f"{attack}_control"))
    return likeness(rows, max(gains, key=lambda attack: gains[attack])) if gains else ""


def whole(path: Path = OBTAINED) -> str:
    """Every method, protection and party."""
    head = ["method", "protection", "accuracy", "party", "models of", "AUC, loss", "AUC, with reference", "advantage"]
    head += ["rebuilt, analytic", "one row: analytic", "one row: search"]
    return table(head, _whole(read(path)))


def _whole(rows: Rows) -> Iterator[tuple[str, ...]]:
    for method, protection in dict.fromkeys((row["method"], row["protection"]) for row in rows):
        cell = picked(rows, method=method, protection=protection)
        trained, single = picked(cell, setting="trained"), picked(cell, setting="one row")
        if trained and all(row["note"].startswith("refused") for row in trained):
            yield method, protection, "refused", *[""] * 8
            continue
        accuracy = f"{100 * fmean(by_seed(trained, 'accuracy')):.1f}"
        for party, name in PARTIES.items():
            if not (mine := picked(trained, party=party)):
                continue
            whose, found = closest(mine)
            if not whose:
                yield method, protection, accuracy, name, NOTHING, *[""] * 6
                continue
            end = " (at the end)" if all(row["when"] == "export" for row in found) else ""
            rates = [rate(found, f"{attack}_auc") for attack in ATTACKS]
            one = [row for row in picked(single, party=party, whose=whose) if row["part"] in ("", "model")]
            rebuilt = (likeness(found, "analytic"), *(likeness(one, attack) for attack in REBUILT))
            told = (name, WHOSE[whose] + end, *rates, rate(found, "loss_advantage"), *rebuilt)
            yield method, protection, accuracy, *told


def short() -> str:
    """A row for each method and kind of protection: what server, host and leader held at the closest."""
    head = ["method", "protection", "accuracy"]
    for party in PARTIES.values():
        head += [f"the {party} held models of", "AUC", "rows rebuilt"]
    return table(head, _short(read()))


def _short(rows: Rows) -> Iterator[tuple[str, ...]]:
    for method in dict.fromkeys(row["method"] for row in rows):
        for kind, names in SHOWN.items():
            accepted = (name for name in names if _cell(rows, method, name))
            protection = next(accepted, "")
            if not protection and not any(picked(rows, method=method, protection=name) for name in names):
                continue  # not run yet
            if not protection:
                yield f"`{method}`", f"{kind}: refused", *[""] * (1 + 3 * len(PARTIES))
                continue
            cell = _cell(rows, method, protection)
            told = [f"`{method}`", protection, f"{100 * fmean(by_seed(cell, 'accuracy')):.1f}"]
            for party in PARTIES:
                mine = picked(cell, party=party)
                if not mine and party == "leader":  # the method has none
                    told += [""] * 3
                    continue
                whose, found = closest(mine)
                one = picked(rows, setting="one row", method=method, protection=protection, party=party, whose=whose)
                end = ", at the end" if found and all(row["when"] == "export" for row in found) else ""
                rebuilt = best_likeness([row for row in one if row["part"] in ("", "model")]) if whose else ""
                told += [WHOSE[whose] + end if whose else NOTHING, rate(found, "calibrated_auc"), rebuilt]
            yield tuple(told)


def _cell(rows: Rows, method: str, protection: str) -> Rows:
    found = picked(rows, setting="trained", method=method, protection=protection)
    return [row for row in found if not row["note"].startswith("refused")]
