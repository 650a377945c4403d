"""Who reaches the optimum of unlike quadratics, and where the others come to rest, in ten settings.

    python experiments/quadratics/run.py [--jobs 2] [--settings 1,2]

Each cell is a run of the library's own method on a point in float64 (problem.py). What it must show is checked and the
program ends with an error if it does not hold: SCAFFOLD, FedDyn and MTGC ("keep", and "gradient" with everybody taking
part) end within 1e-9 of the optimum; averaging, with or without momentum or a pull, ends within 1e-8 of the fixed point
that theory gives; all but the former stay away from the optimum.

It writes obtained.csv, curves.csv and machine.json beside this file (with `--settings`, their rows anew) and, once all
settings are there, docs/quadratics.png and the tables in docs/quadratics.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from problem import SETTINGS, Point, Problem, Setting

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
NEAR, AT_REST, AWAY = 1e-9, 1e-8, 1e-5
PULL, MOMENTUM = 0.5, 0.3
FLAT, PACED = "flat", "paced"

# name → (kind, algorithm, whether it is to reach the optimum with everybody, and with some)
METHODS: dict[str, tuple[str, dict[str, Any], bool, bool]] = {
    "fedavg": (FLAT, {"name": "fedavg"}, False, False),
    "fedavgm": (FLAT, {"name": "fedavgm", "beta": MOMENTUM}, False, False),
    "fedprox": (FLAT, {"name": "fedprox", "mu": PULL}, False, False),
    "hfedavg": (PACED, {"name": "hfedavg"}, False, False),
    "hfedprox": (PACED, {"name": "hfedprox", "mu": PULL}, False, False),
    "hfeddyn": ("exact", {"name": "hfeddyn", "alpha_by": "equal"}, False, False),
    "mtgc, z only": (PACED, {"name": "mtgc", "use_y": False}, False, False),
    "mtgc, y only": (PACED, {"name": "mtgc", "use_z": False}, False, False),
    "mtgc, zero": (PACED, {"name": "mtgc", "z_init": "zero"}, False, False),
    "mtgc, gradient": (PACED, {"name": "mtgc", "z_init": "gradient"}, True, False),
    "mtgc, keep": (PACED, {"name": "mtgc", "z_init": "keep"}, True, True),
    "scaffold": (FLAT, {"name": "scaffold"}, True, True),
    "feddyn": ("exact", {"name": "feddyn"}, True, True),
}


def tables(name: str, setting: Setting) -> dict[str, Any]:
    """The configuration of one method. A flat one takes as many steps in a round as a hierarchical one in all."""
    kind, algorithm, *_ = METHODS[name]
    steps = setting.steps * setting.paces if kind == FLAT else setting.steps
    local: dict[str, Any] = {"steps": steps, "batch": 1, "optimizer": "sgd", "lr": setting.lr}
    if kind == "exact":
        algorithm = algorithm | {"dyn_alpha": setting.alpha}
        first, second = 1 + setting.alpha, setting.steep + setting.alpha
        local |= {"steps": 2, "lr": 1 / first, "lr_time_decay": second / first - 1}
    if kind == PACED or algorithm["name"] == "hfeddyn":
        algorithm = algorithm | {"sector_rounds": setting.paces}
    return {"algorithm": algorithm, "local": local}


def cell(number: str, name: str) -> dict[str, Any]:
    """Run one method in one setting: the distances by round, and the distance to where it was predicted to rest."""
    import numpy as np

    import headwater as hw
    from headwater.config import Config
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    setting = SETTINGS[number]
    problem, count = Problem.of(setting), setting.sectors * setting.clients
    rows, labels = np.arange(count, dtype=np.float32)[:, None], [0] * count
    data = hw.Data(rows, labels, rows[:1], labels[:1], class_names=["point", "none"])
    config = Config(
        seed=setting.seed,
        rounds=setting.rounds,
        data={"name": "arrays", "validation": 0, "reference_size": 0},
        model={"name": "custom"},
        engine={"name": "inline"},
        partition={
            "scheme": "iid",
            "clients": count,
            "sectors": setting.sectors,
            "assign": "blocks",
            "participation": setting.participation,
        },
        **tables(name, setting),
    )
    experiment = prepare(config, data=data, model=lambda: Point(problem))
    tree, held = experiment.tree, {c: int(rows[0]) for c, rows in experiment.rows.items()}
    found = train(experiment)
    distances = [row["loss"] for row in found.history]
    end = found.params[""].vector.numpy()
    teams = [[held[c] for c in tree.team(sector)] for sector in tree.sectors]
    return {
        "setting": number,
        "method": name,
        "distances": distances,
        "end": problem.distance(end),
        **prediction(name, setting, problem, teams, end),
    }


def prediction(name: str, setting: Setting, problem: Problem, teams: list[list[int]], end: Any) -> dict[str, float]:
    """Where a method that averages rests, if everybody takes part: its bias, and how far from there it ended."""
    kind, algorithm, *_ = METHODS[name]
    if setting.participation < 1 or algorithm["name"] not in ("fedavg", "fedavgm", "fedprox", "hfedavg", "hfedprox"):
        return {}
    everybody = [[i for team in teams for i in team]]
    mu = algorithm.get("mu", 0.0)
    if kind == FLAT:
        rest = problem.rest(everybody, setting.steps * setting.paces, 1, setting.lr, mu)
    else:
        rest = problem.rest(teams, setting.steps, setting.paces, setting.lr, mu)
    return {"predicted": problem.distance(rest), "off_prediction": problem.distance(end, rest)}


def complaints(found: dict[str, Any]) -> list[str]:
    """What a cell does not show that it must."""
    *_, whole, some = METHODS[found["method"]]
    setting = SETTINGS[found["setting"]]
    exact = whole if setting.participation == 1 else some
    if found["method"] == "hfeddyn" and setting.paces == 1 and setting.participation == 1:
        exact = True  # sectors of equal size that average once a round: it is FedDyn
    where, problems = f"setting {found['setting']}, {found['method']}", []
    if exact and found["end"] > NEAR:
        problems.append(f"{where}: ended {found['end']:.1e} from the optimum, not within {NEAR}")
    if not exact and found["end"] < AWAY:
        problems.append(f"{where}: ended {found['end']:.1e} from the optimum, which it cannot reach")
    if found.get("off_prediction", 0.0) > AT_REST:
        problems.append(f"{where}: ended {found['off_prediction']:.1e} from the predicted point, not within {AT_REST}")
    return problems


OBTAINED = ["setting", "method", "rounds", "distance", "predicted_distance", "distance_to_predicted"]
CURVES = ["setting", "method", "round", "distance"]


def write(results: list[dict[str, Any]]) -> None:
    """The rows of these settings, in place of what was there of them."""
    rows, points = [], []
    for r in results:
        told = [f"{r[key]:.6e}" if key in r else "" for key in ("end", "predicted", "off_prediction")]
        rows.append([r["setting"], r["method"], str(len(r["distances"])), *told])
        if r["setting"] in PICTURED:
            points += [[r["setting"], r["method"], str(n), f"{d:.4e}"] for n, d in enumerate(r["distances"], 1)]
    done = {r["setting"] for r in results}
    renew(HERE / "obtained.csv", OBTAINED, rows, done)
    renew(HERE / "curves.csv", CURVES, points, done)
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": "python experiments/quadratics/run.py",
        "commit": here.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("headwater", "torch", "numpy")},
    }
    (HERE / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def renew(path: Path, head: list[str], rows: list[list[str]], done: set[str]) -> None:
    before = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))[1:] if path.exists() else []
    rows = [row for row in before if row[0] not in done] + rows
    rows.sort(key=lambda row: list(SETTINGS).index(row[0]))  # stable: methods and rounds stay in order
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def read() -> dict[tuple[str, str], dict[str, str]]:
    with (HERE / "obtained.csv").open(encoding="utf-8") as file:
        return {(row["setting"], row["method"]): row for row in csv.DictReader(file)}


def table() -> str:
    """obtained.csv as the page shows it: a row a method, a column a setting."""
    found = read()
    lines = [f"| method | {' | '.join(SETTINGS)} |", f"|---|{'---|' * len(SETTINGS)}"]
    for name in METHODS:
        told = [float(found[number, name]["distance"]) for number in SETTINGS]
        lines.append(f"| {name} | {' | '.join(f'{d:.0e}' for d in told)} |")
    worst = max(float(row["distance_to_predicted"]) for row in found.values() if row["distance_to_predicted"])
    said = "The largest distance between where an averaging method ended and its predicted point is"
    lines += ["", f"{said} {worst:.0e}."]
    return "\n".join(lines)


def settings_table() -> str:
    heads = ["setting", "dimension", "sectors × clients", "H", "E", "lr", "curvatures", "participation", "rounds"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for number, s in SETTINGS.items():
        shape = f"{s.sectors} × {s.clients}"
        what = [number, s.dim, shape, s.steps, s.paces, s.lr, f"1, {s.steep:g}", s.participation, s.rounds]
        lines.append(f"| {' | '.join(map(str, what))} |")
    return "\n".join(lines)


def fill_page() -> None:
    page = DOCS / "quadratics.md"
    text = page.read_text(encoding="utf-8")
    for name, made in (("settings", settings_table()), ("results", table())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            sys.exit(f"{page} has no place for the {name}: it needs the lines {begin.strip()} and {end}")
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{made}\n{end}{after}"
    page.write_text(text, encoding="utf-8")


PICTURED = {"3": "everybody takes part (setting 3)", "8": "half of the clients a round (setting 8)"}


def picture() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from headwater.report import style

    curves: dict[tuple[str, str], list[float]] = {}
    with (HERE / "curves.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            curves.setdefault((row["setting"], row["method"]), []).append(float(row["distance"]))
    figure = Figure(figsize=(11, 5.6), dpi=150, layout="constrained", facecolor=style.LIGHT.surface)
    FigureCanvasAgg(figure)
    for axes, (number, title) in zip(figure.subplots(1, 2, sharey=True), PICTURED.items(), strict=True):
        for slot, name in enumerate(METHODS):
            colour, dash = style.look(slot)
            points = [max(d, 1e-16) for d in curves[number, name]]
            line = (0, [part / 2 for part in dash]) if dash else "-"
            look = {"color": style.LIGHT.colours[colour], "linewidth": 1.5, "linestyle": line}
            axes.plot(range(1, len(points) + 1), points, label=name, **look)
        axes.set_yscale("log")
        axes.set_ylim(1e-16, 3)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("Round")
        axes.grid(True, color=style.LIGHT.grid)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("Distance to the optimum, relative")
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, handlelength=3.2)
    figure.savefig(DOCS / "quadratics.png")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--jobs", type=int, default=2)
    asked.add_argument("--settings", default=",".join(SETTINGS))
    given = asked.parse_args()
    numbers = given.settings.split(",")
    cells = [(number, name) for number in numbers for name in METHODS]
    with ProcessPoolExecutor(given.jobs) as pool:
        results = []
        for found in pool.map(cell, *zip(*cells, strict=True)):
            print(f"{found['setting']:>2} {found['method']:15} {found['end']:.1e}", *complaints(found), flush=True)
            results.append(found)
    problems = [problem for found in results for problem in complaints(found)]
    write([found for found in results if not any(complaints(r) for r in results if r["setting"] == found["setting"])])
    if {number for number, _ in read()} == set(SETTINGS):
        fill_page()
        picture()
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
