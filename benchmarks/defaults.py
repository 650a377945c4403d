"""Which methods learn with their defaults: every method on several kinds of data, a few rounds each.

    python benchmarks/defaults.py [PROBLEM …] [--methods M,M] [--seed 0] [--runs DIR] [--out FILE.json]

A row that FILE.json has of the same command is kept, with its date and commit, and a run that is finished in DIR
(runs/defaults) is not repeated, so the same command carries on where it was interrupted. Without FILE.json, all of it
is measured anew.
Methods are judged on the validation set: the best validation accuracy of the rounds, beside what naming the most
frequent class of the validation set gives. One learns if it is above the 95 % binomial interval around that share. For
methods that keep a model per client there is no such number, and the clients' mean on the test set stands in.
Data that is not in the data directory is left out, and the table says so. Writes defaults.json and defaults.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import record
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
TABLE = "digits.csv"
# Problem → rounds and settings. Clients, sectors and split are the defaults: 20 clients in 2 sectors, Dirichlet 0.1.
# Sizes and rounds are what all methods together do in about two hours on two cores, and large enough that a method
# which learns is above a guess.
PROBLEMS: dict[str, tuple[int, dict[str, Any]]] = {
    "digits": (10, {}),
    "table": (10, {"data.name": TABLE, "data.label": "digit"}),
    "fashion-mnist": (5, {"data.name": "fashion_mnist", "data.fraction": 0.02, "data.test_fraction": 0.1}),
    "ag-news": (4, {"data.name": "ag_news", "data.fraction": 0.05, "data.test_fraction": 0.1}),
    "cifar10": (3, {"data.name": "cifar10", "data.fraction": 0.05, "data.test_fraction": 0.1}),
}


def write_table(path: Path) -> None:
    """The digits of scikit-learn as a table: 1,797 rows, 64 columns of numbers, 10 classes."""
    found = load_digits()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*found.feature_names, "digit"])
        writer.writerows([*row, int(label)] for row, label in zip(found.data.tolist(), found.target, strict=True))


def sets_of(problem: str, folder: str = "") -> list[str]:
    """The settings of a problem as words of a command; the table is in this folder."""
    return [
        f"{key}={folder}{value}" if value == TABLE else f"{key}={value}" for key, value in PROBLEMS[problem][1].items()
    ]


def command_of(problem: str, method: str, seed: int) -> str:
    """What does one run, where the table is."""
    sets = "".join(f" --set {word}" for word in sets_of(problem))
    return f"headwater run {method}{sets} --rounds {PROBLEMS[problem][0]} --seed {seed}"


def one(problem: str, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one method on one problem, or read its finished run."""
    from headwater.config import Config
    from headwater.errors import DataError, UserError
    from headwater.specs import LocalSpec
    from headwater.training.experiment import prepare
    from headwater.training.loop import train
    from headwater.training.remarks import guess_limit

    row: dict[str, Any] = {"problem": problem, "method": method, "command": command_of(problem, method, seed)}
    rounds = PROBLEMS[problem][0]
    try:
        experiment = prepare(Config.load(method, sets_of(problem, f"{folder}/"), rounds=rounds, seed=seed))
        run = train(experiment, out=folder / problem / method / f"seed-{seed}-rounds-{rounds}")
    except DataError as error:
        return row | {"left_out": str(error)}
    except UserError as error:
        return row | {"refused": str(error)}
    split, key = experiment.split, "validation_accuracy"
    seen = [value for each in run.history if (value := each.get(key)) is not None]
    labels = split.validation.y if seen else split.test.y
    seen = seen or [each["accuracy"] for each in run.history]
    limit = guess_limit(labels, split.classes)
    local = run.result.get("local_accuracy")
    learns = max(seen) > limit or (experiment.method.INFO.personal and local is not None and local > limit)
    facts = {"best": round(max(seen), 4), "last": round(seen[-1], 4), "guess": round(limit, 4), "learns": learns}
    stages = [value for value in vars(experiment.method).values() if isinstance(value, LocalSpec)]
    used = {name: getattr(stages[0], name) for name in ("optimizer", "lr", "epochs", "clip")} if stages else {}
    return row | facts | {"judged_by": "validation" if labels is split.validation.y else "test", "local": used}


def markdown(found: dict[str, Any]) -> str:
    """The table for people."""
    rows = found["rows"]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    by = {(row["problem"], row["method"]): row for row in rows}
    guesses = {row["problem"]: row["guess"] for row in rows if row.get("judged_by") == "validation"}
    lines = [
        "# Which methods learn with their defaults",
        "",
        f"Written by `{found['command']}`: {found['machine']}, {_span(rows, 'date')}, commits {_span(rows, 'commit')}. "
        f"Seed {found['seed']}. Best accuracy on the validation set, in per cent; NO marks "
        "those that are not above a guess. In brackets: the test accuracy of methods that keep a model per client.",
        "",
        f"| | {' | '.join(problems)} |",
        f"|---|{'---|' * len(problems)}",
        f"| rounds | {' | '.join(str(PROBLEMS[problem][0]) for problem in problems)} |",
        f"| a guess, at most | {' | '.join(f'{100 * guesses[p]:.1f}' if p in guesses else '–' for p in problems)} |",
    ]
    lines += [f"| {method} | {' | '.join(_cell(by.get((p, method))) for p in problems)} |" for method in methods]
    left = {row["problem"]: row["left_out"] for row in rows if "left_out" in row}
    lines += ["", *(f"{problem} was left out: {why}" for problem, why in left.items())]
    refused = [row for row in rows if "refused" in row]
    lines += [f"{row['method']} on {row['problem']} is refused: {row['refused']}." for row in refused]
    bad = [f"{row['method']} on {row['problem']}" for row in rows if row.get("learns") is False]
    lines += ["", f"Do not learn: {', '.join(bad) if bad else 'none'}."]
    return "\n".join(lines) + "\n"


def _span(rows: list[dict[str, Any]], key: str) -> str:
    return ", ".join(dict.fromkeys(row[key] for row in rows))


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or "best" not in row:
        return "–" if row is None or "left_out" in row else "refused"
    text = f"{100 * row['best']:.1f}" if row["judged_by"] == "validation" else f"({100 * row['best']:.1f})"
    return text if row["learns"] else f"**NO** {text}"


def main() -> None:
    from headwater.algorithms import ALGORITHMS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"any of: {', '.join(PROBLEMS)}")
    parser.add_argument("--methods", default="", help="names with commas between them; else all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "defaults")
    parser.add_argument("--out", type=Path, default=HERE / "defaults.json")
    given = parser.parse_args()
    methods = [name for name in given.methods.split(",") if name] or list(ALGORITHMS)
    for kind, names, known in (("problem", given.problems, PROBLEMS), ("method", methods, ALGORITHMS)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no {kind} is called {unknown[0]!r}")
    folder = given.runs.absolute()
    if not (folder / TABLE).is_file():
        write_table(folder / TABLE)
    known = kept_rows(given.out, given.seed)
    for problem in given.problems or PROBLEMS:
        for method in methods:
            if (problem, method) in known:
                continue
            row = one(problem, method, given.seed, folder)
            known[problem, method] = row | {key: record.about()[key] for key in ("date", "commit")}
            short = {key: value for key, value in row.items() if key not in ("command", "local")}
            print(short, file=sys.stderr, flush=True)
            rows = [known[key] for key in product(PROBLEMS, ALGORITHMS) if key in known]
            found = {"command": "make bench-defaults", **record.about(), "seed": given.seed, "rows": rows}
            given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            given.out.with_suffix(".md").write_text(markdown(found), encoding="utf-8")
    print(given.out.with_suffix(".md").read_text(encoding="utf-8"))


def kept_rows(path: Path, seed: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows of an earlier call that the same commands gave, by problem and method; not those without data."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
    return {
        (row["problem"], row["method"]): {key: found[key] for key in ("date", "commit")} | row
        for row in found["rows"]
        if "left_out" not in row and row["problem"] in PROBLEMS
        if row["command"] == command_of(row["problem"], row["method"], seed)
    }


if __name__ == "__main__":
    main()
