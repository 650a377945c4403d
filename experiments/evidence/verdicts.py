"""Write results.md from the committed data: every table with its differences paired by seed, and its claims.

    python experiments/evidence/verdicts.py

Reads NAME_obtained.csv and NAME.md of every table that has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from headwater.report.differences import LEGEND

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # for the module that all experiments share

from committed import Line, read  # noqa: E402
from paired import COUNTS, gap  # noqa: E402

ABOUT = (
    "# What came out, table by table\n\n"
    "`python experiments/evidence/verdicts.py` writes this page from the data beside it. Behind an accuracy stands its "
    f"difference to another row. {LEGEND} {COUNTS} With five seeds or more, p is that of Wilcoxon's signed-rank test.\n"
)
TABLES = (
    "traffic",
    "cifar10",
    "mtgc",
    "mtgc_long",
    "mtgc_cifar10",
    "fedeed",
    "fedhkd",
    "text",
)
# Further rows that others are compared with, beside the first one.
ALSO = {
    "mtgc": ("H-FedAvg at MTGC's rate",),
    "mtgc_cifar10": ("H-FedAvg at MTGC's rate",),
    "traffic": ("FedHEAD", "FedDF", "FedHEAD+, last"),
    "cifar10": ("FedDF", "FedHEAD", "FedAvg, as coded", "FedHEAD, as coded"),
    "fedeed": ("FedDF", "FedEED, K 4, R 1"),
    "fedhkd": ("FedProto", "MOON"),
    "text": ("FedHEAD", "FedDF"),
}
LAST = 5  # rounds at the end whose mean is shown beside the last one
Lines = list[Line]
Curve = dict[int, float]  # round → value
Runs = dict[tuple[str, str], dict[int, Curve]]  # (row, column) → seed → curve


def runs_of(lines: Lines, key: str) -> Runs:
    found: Runs = {}
    for line in lines:
        if line.get(key):
            column = line["column"].removesuffix(", local")  # a run that has its global accuracy, too
            cell = found.setdefault((line["row"], column), {})
            cell.setdefault(int(line["seed"]), {})[int(line["round"])] = 100 * float(line[key])
    return found


def final(curve: Curve) -> float:
    return curve[max(curve)]


def first(curve: Curve) -> float:
    return curve[min(curve)]


def late(curve: Curve) -> float:
    return fmean(curve[at] for at in sorted(curve)[-LAST:])


def beside(mine: dict[int, float], base: dict[int, float]) -> str:
    """The paired difference; of a single seed, the plain one."""
    common = mine.keys() & base.keys()
    if len(common) == 1:
        return f"{next(mine[seed] - base[seed] for seed in common):+.1f}".replace("-", "−")
    return gap(mine, base).replace("*", "\\*")


def table(runs: Runs, base: str, how: Callable[[Curve], float]) -> list[str]:
    rows, columns = (list(dict.fromkeys(key[at] for key in runs)) for at in (0, 1))
    values = {key: {seed: how(curve) for seed, curve in cell.items()} for key, cell in runs.items()}
    heads = columns if len(columns) > 1 else ["%"]  # a single setting is that of the title
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for row in rows:
        cells = []
        for column in columns:
            mine, other = values.get((row, column), {}), values.get((base, column), {})
            text = f"{fmean(mine.values()):.1f}" if mine else ""
            cells.append(f"{text}; {beside(mine, other)}" if mine and other and row != base else text)
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def reached(runs: Runs, target: float) -> list[str]:
    """A table of the first rounds with a target accuracy, by seed; a dash where there is none."""
    rows, columns = (list(dict.fromkeys(key[at] for key in runs)) for at in (0, 1))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        firsts = [
            [next((str(at) for at, value in sorted(curve.items()) if value >= target), "–") for curve in cell.values()]
            for cell in (runs.get((row, column), {}) for column in columns)
        ]
        lines.append(f"| {row} | " + " | ".join(", ".join(each) for each in firsts) + " |")
    return lines


def targets(name: str) -> list[float]:
    """The target accuracies that a table asks about."""
    metrics = {line["metric"] for line in read(HERE / f"{name}.csv")}
    return sorted(float(each.partition(":")[2]) for each in metrics if each.startswith("rounds_to:"))


def claims(text: str) -> list[str]:
    """The sentences on claims, as reproduce wrote them."""
    _, found, rest = text.partition("## What the paper claims\n")
    return [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("* ")] if found else []


def section(name: str) -> list[str]:
    data, text = HERE / f"{name}_obtained.csv", HERE / f"{name}.md"
    if not data.is_file():
        return []
    lines = read(data)
    runs = runs_of(lines, "accuracy")
    base = lines[0]["row"]
    seeds = sorted({int(line["seed"]) for line in lines})
    title = text.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    rounds = max(int(line["round"]) for line in lines)
    found = [f"## {title}", ""]
    found += [f"[{name}.md]({name}.md), seeds {', '.join(map(str, seeds))}; the difference is that to {base}.", ""]
    found += ["Accuracy after round 1, %:", "", *table(runs, base, first), ""]
    found += [f"Accuracy after round {rounds}, %:", "", *table(runs, base, final), ""]
    found += [f"Mean of the last {LAST} rounds, %:", "", *table(runs, base, late), ""]
    for other in ALSO.get(name, ()):
        found += [f"After round {rounds}, beside {other}:", "", *table(runs, other, final), ""]
        found += [f"Mean of the last {LAST} rounds, beside {other}:", "", *table(runs, other, late), ""]
    for target in targets(name):
        found += [f"Rounds to {target:g} %, by seed:", "", *reached(runs, target), ""]
    if own := runs_of(lines, "local_accuracy"):
        for other in (base, *ALSO.get(name, ())):
            title = f"Clients' own models on their own test rows, after the last round, %, beside {other}:"
            found += [title, "", *table(own, other, final), ""]
    if team := runs_of(lines, "ensemble_accuracy"):
        found += ["The ensemble of teachers after the last round, %:", "", *table(team, "", final), ""]
    return [*found, *claims(text.read_text(encoding="utf-8")), ""]


def by_round() -> list[str]:
    """Average, teachers and student of the rounds that the probe has, along each method's own way."""
    lines = [line for line in read(HERE.parent / "cifar10_resnet8" / "obtained.csv") if line["teacher_accuracy"]]
    about = (
        "Along each method's own way, from [cifar10_resnet8](../cifar10_resnet8): accuracy on the validation set, %, "
        "by seed. In FedHEAD a sector's ten clients teach its leader (mean over two leaders), in FedDF all twenty."
    )
    found = [
        "## Average, teachers and student at rounds 1, 5 and 10",
        "",
        about,
        "",
        "| | round | average | teachers together | student |",
        "|---|---|---|---|---|",
    ]
    for variant in dict.fromkeys(line["variant"] for line in lines):
        for at in ("1", "5", "10"):
            own = [line for line in lines if (line["variant"], line["round"]) == (variant, at)]
            keys = ("student_before", "teacher_accuracy", "student_after")
            shown = [_shown([line[key] for line in own]) for key in keys]
            found.append(f"| {variant} | {at} | " + " | ".join(shown) + " |")
    return [*found, ""]


def teachers() -> list[str]:
    """What a student gains in rounds whose teachers are better than the average that it starts from, and in others."""
    about = (
        "Rounds by whether the teachers together are more accurate on the validation set than the average from which "
        "the student starts, all seeds together; the change is the student's accuracy there after distilling minus "
        "before, in points. Of several leaders the means are taken; the change of the model is that of the average of "
        "their students at the server, where it was noted. FedHEAD+ is left out, which teaches twice."
    )
    found = ["## Do better teachers make better students?", "", about, ""]
    heads = [f"{which}: rounds | student better in | change | of the model" for which in ("better", "not better")]
    found += [f"| | | {' | '.join(heads)} |", "|---" * 10 + "|"]
    sources = [("CIFAR-10, 4 000 images", HERE.parent / "cifar10_resnet8" / "obtained.csv", "variant")]
    sources += [("CIFAR-10, 10 000 images", HERE / "cifar10_obtained.csv", "row")]
    sources += [("Traffic, {}", HERE / "traffic_obtained.csv", "row"), ("{}", HERE / "text_obtained.csv", "row")]
    for title, path, row in sources:
        own = [line for line in read(path) if line.get("teacher_accuracy") and "head+" not in line[row].lower()]
        places = [(title.format(line.get("column", "")), line[row]) for line in own]
        for key in dict.fromkeys(places):
            lines = [line for line, place in zip(own, places, strict=True) if place == key]
            cells = []
            for better in (True, False):
                such = [
                    line
                    for line in lines
                    if (float(line["teacher_accuracy"]) > float(line["student_before"])) == better
                ]
                students, models = (_changes(such, after) for after in ("student_after", "validation_accuracy"))
                cells += [str(len(such)), str(sum(change > 0 for change in students)), _mean(students), _mean(models)]
            found.append(f"| {' | '.join((*key, *cells))} |")
    return [*found, ""]


def _changes(lines: Lines, after: str) -> list[float]:
    """Accuracy minus that of the average before distilling, in points, of every line that has it."""
    return [100 * (float(line[after]) - float(line["student_before"])) for line in lines if line.get(after)]


def _mean(changes: list[float]) -> str:
    return f"{fmean(changes):+.1f}".replace("-", "−") if changes else ""


def probe() -> list[str]:
    data = HERE / "probe_obtained.csv"
    if not data.is_file():
        return []
    lines = read(data)
    seeds = ", ".join(sorted({line["seed"] for line in lines}))
    found = [
        "## One round from the same model",
        "",
        f"[probe_obtained.csv](probe_obtained.csv), seeds {seeds}. Test accuracy, %, by seed.",
        "",
    ]
    found += ["| | average | all twenty together | " + " | ".join(f"after {m}" for m in _methods(lines)) + " |"]
    found += ["|---|---|---|" + "---|" * len(_methods(lines))]
    for at in sorted({int(line["round"]) for line in lines}):
        own = [line for line in lines if int(line["round"]) == at]
        average, team = (_shown([line[key] for line in own if line[key]]) for key in ("average", "teachers"))
        after = [_shown([line["after"] for line in own if line["method"] == m]) for m in _methods(lines)]
        found.append(f"| round {at} | " + " | ".join((average, team, *after)) + " |")
    return [*found, ""]


def _methods(lines: Lines) -> list[str]:
    return list(dict.fromkeys(line["method"] for line in lines))


def _shown(values: list[str]) -> str:
    return ", ".join(f"{100 * float(value):.1f}" for value in values)


def page() -> str:
    body = [line for name in TABLES for line in section(name)] + by_round() + teachers() + probe()
    return ABOUT.replace("*", "\\*") + "\n" + "\n".join(body).rstrip("\n") + "\n"


def main() -> None:
    (HERE / "results.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
