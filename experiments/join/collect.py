"""Turn the run directories of run.py into what is committed beside this file.

    python experiments/join/collect.py [--runs runs/join]

Writes choose.csv and unseen.csv (a row a run), choose.md (candidates by their mean score), unseen.md (methods by data
set, and in how many pairs of data set and seed the joined method is better), unseen.png (differences to FedAvg) and
machine.json. Rows of the two files
whose runs are not in the folder are kept. What is not there yet is left out; the candidate that is best so far is
printed, and written as a preset with

    python experiments/join/collect.py --preset src/headwater/presets/headwater/default.toml
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from settings import CANDIDATES, CHOOSING, CONTROLS, PAPERS

from headwater.report import differences

HERE = Path(__file__).parent
COLUMNS = ("data", "method", "seed", "local_lr", "accuracy", "steps_taken", "model_sha256")
OTHERS = PAPERS | CONTROLS
BASES = ("fedavg", "fedavg, SGD")  # all others are compared with these, too
SHOWN = {"digits": "digits", "iscx_vpn2016": "network traffic (ISCX-VPN2016)", "ag_news": "AG News, MiniLM"}
Found = dict[tuple[str, str, int], dict[str, Any]]  # by data set, method and seed


def read(folder: Path, data: list[str], methods: list[str]) -> Found:
    found: Found = {}
    for name in data:
        for method in methods:
            own = folder / name / method.replace(", ", "-").replace(" ", "_")
            for path in sorted(own.glob("seed-*/result.json")):
                result = json.loads(path.read_text(encoding="utf-8"))
                config = tomllib.loads((path.parent / "config.toml").read_text(encoding="utf-8"))
                lines = (path.parent / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
                noted = [json.loads(line).get("distill", {}).get("server", {}).get("step") for line in lines]
                steps = " ".join(f"{step:g}" for step in noted if step is not None)  # the guard's, round by round
                result["accuracy"] = round(result["accuracy"], 4)  # as in the files, so that equal results stay equal
                found[name, method, result["seed"]] = result | {"local_lr": config["local"]["lr"], "steps_taken": steps}
    return found


def kept(path: Path) -> Found:
    """The rows of an earlier call."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["data"], row["method"], int(row["seed"])): row | {"accuracy": float(row["accuracy"])} for row in rows}


def in_order(found: Found, data: list[str], methods: list[str]) -> Found:
    """Rows by data set, method and seed."""
    place = {key: (data.index(key[0]), methods.index(key[1]), key[2]) for key in found}
    return {key: found[key] for key in sorted(found, key=place.__getitem__)}


def write(found: Found, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for (data, method, seed), one in found.items():
            numbers = (one["local_lr"], f"{one['accuracy']:.4f}", one["steps_taken"], one["model_sha256"])
            writer.writerow([data, method, seed, *numbers])


def values(found: Found, data: str, method: str) -> dict[int, float]:
    return {seed: one["accuracy"] for (d, m, seed), one in found.items() if (d, m) == (data, method)}


def cell(scores: dict[int, float]) -> str:
    return (
        f"{100 * fmean(scores.values()):.1f} ({', '.join(f'{100 * s:.1f}' for s in scores.values())})" if scores else ""
    )


def ranked(found: Found) -> list[tuple[float, str]]:
    """Candidates that were trained on all data sets with all seeds that any has, by the mean of their means."""
    seeds = {data: {seed for d, _, seed in found if d == data} for data in CHOOSING}
    scores = {method: {data: values(found, data, method) for data in CHOOSING} for method in CANDIDATES}
    whole = {m: s for m, s in scores.items() if all(s[data] and s[data].keys() == seeds[data] for data in CHOOSING)}
    return sorted(((fmean(fmean(s.values()) for s in by.values()), m) for m, by in whole.items()), reverse=True)


def chosen_table(found: Found) -> str:
    """A row a candidate: the mean over data sets, each data set with every seed, and pairs beside FedAvg."""
    order = {method: mean for mean, method in ranked(found)}
    heads = ["candidate", "mean, %", *CHOOSING, "better than FedAvg, pairs"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for method in sorted(CANDIDATES, key=lambda m: -order.get(m, 0.0)):
        scores = [values(found, data, method) for data in CHOOSING]
        if any(scores):
            better, pairs = paired(found, method, "fedavg")
            mean = f"{100 * order[method]:.2f}" if method in order else ""
            cells = [method, mean, *map(cell, scores), f"{better} of {pairs}" if method != "fedavg" else ""]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def paired(found: Found, method: str, other: str) -> tuple[int, int]:
    """In how many of how many pairs of data set and seed a method is better than another; equal ones count as not."""
    pairs = [
        (one["accuracy"], found[data, other, seed]["accuracy"])
        for (data, m, seed), one in found.items()
        if m == method and (data, other, seed) in found
    ]
    return sum(a > b for a, b in pairs), len(pairs)


def unseen_table(found: Found) -> str:
    names = list(SHOWN)
    heads = ["method", *names, "joined is better, pairs"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for method in [*OTHERS, "joined"]:
        better, of = paired(found, "joined", method)
        told = f"{better} of {of}" if method != "joined" else ""
        cells = [method, *(cell(values(found, name, method)) for name in names), told]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"{differences.LEGEND} {differences.RANKS_LEGEND}"]
    everybody = [*OTHERS, "joined"]
    pairs = [("joined minus", [("joined", each) for each in OTHERS])]
    pairs += [(f"minus {base}", [(each, base) for each in everybody if each != base]) for base in BASES]
    for title, rows in pairs:
        lines += ["", f"| {title} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for mine, base in rows:
            gaps = [differences.paired(values(found, name, mine), values(found, name, base)) for name in names]
            shown = base if title == "joined minus" else mine
            lines.append(f"| {shown} | " + " | ".join(gap.text if gap else "" for gap in gaps) + " |")
    return "\n".join(lines).replace("*", "\\*") + "\n"


def draw(found: Found, path: Path) -> None:
    """Every method's difference to FedAvg, paired by seed: the mean with its 95 % interval, and a dot a seed.

    Controls stand below a line.
    """
    order = [*(method for method in PAPERS if method != "fedavg"), "joined", *CONTROLS][::-1]
    names = [name for name in SHOWN if values(found, name, "fedavg")]
    figure, panels = pyplot.subplots(1, len(names), figsize=(3.7 * len(names), 4.4), sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        base = values(found, name, "fedavg")
        for height, method in enumerate(order):
            mine = values(found, name, method)
            gap = differences.paired(mine, base)
            if gap is None:
                continue
            colour = "#1f5fa8" if gap.star else "#8a8a8a"
            each = [100 * (mine[seed] - base[seed]) for seed in mine.keys() & base.keys()]
            axes.plot(each, [height - 0.28] * len(each), "o", color=colour, alpha=0.5, markersize=4, markeredgewidth=0)
            axes.plot([100 * gap.low, 100 * gap.high], [height] * 2, color=colour, linewidth=2)
            axes.plot(100 * gap.mean, height, "|", color=colour, markersize=13, markeredgewidth=2.5)
        axes.axvline(0, color="#333333", linewidth=0.8)
        axes.axhline(len(CONTROLS) - 0.5, color="#bbbbbb", linewidth=0.8)
        axes.set_title(f"{SHOWN[name]}\nFedAvg by Adam: {100 * fmean(base.values()):.1f} %", fontsize=10)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    panels[0][0].set_yticks(range(len(order)), ["headwater/default" if m == "joined" else m for m in order])
    figure.supxlabel(
        "accuracy minus FedAvg's, points: a dot a seed, bars 95 % intervals, blue if zero is outside", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def preset(method: str) -> str:
    """The candidate as a preset. Rates and epochs are left to the data, so that `headwater tune` can set them."""
    lines = ["# the combination of the papers' parts that was best by validation on Fashion-MNIST and CIFAR-10"]
    for section, table in CANDIDATES[method].items():
        if section != "local":
            lines += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=Path, default=Path("runs/join"))
    asked.add_argument("--preset", type=Path, help="write the best candidate there, as a preset")
    asked.add_argument("--commit", default="", help="of the code that ran, where it is not the one at hand")
    given = asked.parse_args()
    wanted = (list(CHOOSING), list(CANDIDATES)), (list(SHOWN), [*OTHERS, "joined"])
    choose, later = (
        in_order(kept(HERE / f"{name}.csv") | read(given.runs / name, *both), *both)
        for name, both in zip(("choose", "unseen"), wanted, strict=True)
    )
    for name, found, table in (("choose", choose, chosen_table), ("unseen", later, unseen_table)):
        if found:
            write(found, HERE / f"{name}.csv")
            (HERE / f"{name}.md").write_text(table(found), encoding="utf-8")
            print(table(found))
    if later:
        draw(later, HERE / "unseen.png")
    for mean, method in ranked(choose)[:1]:
        print(f"best by validation so far: {method!r}, {100 * mean:.2f} %")
        if given.preset:
            given.preset.write_text(preset(method), encoding="utf-8")
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    runs = [*choose.values(), *later.values()]
    new = sum("versions" in one for one in runs)  # the others are rows of an earlier call
    chosen = given.runs / "unseen" / "chosen.json"
    about: dict[str, Any] = {
        "command": "python experiments/join/run.py choose, then unseen, then collect.py",
        "chosen": json.loads(chosen.read_text(encoding="utf-8"))["candidate"] if chosen.exists() else None,
        "commit": given.commit or here.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, shared with other work; times are not a benchmark",
        "runs": new,
        "versions": next((one["versions"] for one in runs if "versions" in one), {}),
    }
    if new < len(runs):
        old = json.loads((HERE / "machine.json").read_text(encoding="utf-8"))
        about["earlier"] = [*old.pop("earlier", []), old]
    (HERE / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
