"""`headwater compare`, several methods on the same data, split and seeds; `headwater report`, from finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import startup
from headwater.cli.directories import check_path, claim, directory_for, plain_name, removed_if_unused
from headwater.cli.options import Baseline, Options, Target, takes
from headwater.cli.run import INTERRUPTED
from headwater.cli.terminal import (
    BEST,
    CellText,
    RunProgress,
    as_json,
    console,
    print_lines,
    reading,
    say,
    status,
    table,
)
from headwater.cli.tune import axes_of, tell_edges, tune_each
from headwater.errors import ConfigError, nearest
from headwater.training.run_numbers import RUNS

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.report.method_table import MethodTable

Methods = Annotated[list[str], typer.Argument(metavar="METHOD METHOD … (with --from: DIR DIR …)", show_default=False)]
Existing = Annotated[
    bool, typer.Option("--from", help="Compare runs that exist: the arguments are their directories. Trains nothing.")
]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        "--tune",
        metavar="KEY or KEY=V1,V2",
        help="First choose this key for every method on the validation set, with the same budget; repeatable.",
    ),
]
TuneBudget = Annotated[
    int | None,
    typer.Option(
        "--tune-budget", metavar="N", help="Rounds of a tried setting; else a fifth of the run's, at least 3."
    ),
]
Directories = Annotated[list[Path], typer.Argument(metavar="DIR …", show_default=False)]
Based = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="PRESET or FILE.toml", help="What the compared runs share; the defaults if left out."
    ),
]


@takes(
    "sets seed seeds rounds target baseline tune tune_budget existing "
    "out engine address workers device data_dir quiet json force"
)
def compare(
    options: Options,
    methods: Methods,
    config: Based = None,
    target: Target = None,
    baseline: Baseline = None,
    tune: Tune = None,
    tune_budget: TuneBudget = None,
    existing: Existing = False,
) -> int:
    """Compare methods on the same data.

    Each method (see `headwater list algorithms`) gets the same data, split and seeds. Finished runs are kept and
    skipped on the next call. Without --out, results go to runs/compare-DATA-001; the same command carries on there,
    also with further methods or seeds, and one with other settings gets the next number.

    With --tune, each method's settings are first chosen on the validation set, with the same budget for all.

    Examples: `headwater compare fedavg feddf fedhead --seeds 0,1,2 --set partition.alpha=0.1`,
    `headwater compare --from runs/fedavg-digits-001 runs/fedhead-digits-001`
    """
    from headwater.config import Config
    from headwater.report.method_table import check_target

    check_target(target, "--target")
    if existing:
        return _compare_existing([Path(each) for each in methods], target, baseline, options)
    if baseline is not None and baseline not in methods:
        raise ConfigError(
            f"--baseline {baseline!r} is not compared{nearest(baseline, methods)}; name it as a method too"
        )
    repeated = [method for method in methods if methods.count(method) > 1]
    if repeated:
        raise ConfigError(f"{repeated[0]!r} is named twice; name each method once")

    def configured(seed: int | None, at: int, point: Mapping[str, str]) -> Config:
        pairs = [*(options.sets or []), *(f"{key}={value}" for key, value in point.items())]
        return Config.load_each(methods, config, pairs, **options.keys() | {"seed": seed})[at]

    seeds, indices = options.all_seeds(), range(len(methods))
    axes = axes_of(tune or [], "--tune")
    configs = [[configured(seed, at, {}) for at in indices] for seed in seeds]  # a seed of None is left out
    check_path(options.out or RUNS)
    out = options.out or _default_out(configs, f"{axes}{tune_budget}" if axes else "")
    chosen: list[dict[str, Any]] = [{} for _ in indices]
    if axes:
        folders = [out / "tune" / method.replace(":", ".") for method in methods]
        chosen = tune_each([partial(configured, seeds[0], at) for at in indices], axes, folders, tune_budget, options)
        for method, found in zip(methods, chosen, strict=True):
            tell_edges(found, method)
    configs = [[configured(seed, at, chosen[at].get("best", {})) for at in indices] for seed in seeds]
    directories: list[Path] = []
    with removed_if_unused(out):
        for each in configs:
            if code := _one_seed(each, out, directories, options, chosen):
                return code
    return _show(directories, out, target, baseline, options)


@takes("target baseline out quiet json")
def report(options: Options, directories: Directories, target: Target = None, baseline: Baseline = None) -> None:
    """Write a report from runs.

    A page, a picture and tables, of one run or of many. A DIR may also be that of a comparison.

    Example: `headwater report runs/fedavg-digits-001 runs/fedhead-digits-001 --out both`
    """
    from headwater.report import export
    from headwater.report.method_table import check_target, dicts, tabulate
    from headwater.report.runs import find

    check_target(target, "--target")
    runs = find(directories)
    out = options.out or (directories[0] / "report" if len(directories) == 1 else Path("runs") / "report")
    check_path(out)
    by_method = tabulate(runs, target, baseline)
    for damaged in filter(None, (run.damage for run in runs)):
        say(damaged)
    with status("writing the report …", options.quiet):
        files = export(directories, out, target=target, baseline=baseline)
    if options.json:
        as_json({"files": [str(file) for file in files], "rows": dicts(by_method)})
        return
    print_method_table(by_method)
    print_lines(*files)


def _compare_existing(given: list[Path], target: float | None, baseline: str | None, options: Options) -> int:
    """The table and report of runs that exist. They must have the same data and, for each seed, the same split."""
    from headwater.report.runs import find

    runs = find(given)
    first = runs[0]
    for run in runs[1:]:
        for section in ("data", "partition"):
            there, here = ({**dict(each.config.get(section, {})), "dir": ""} for each in (first, run))
            for key in [*there, *(key for key in here if key not in there)]:
                if there.get(key) != here.get(key):
                    raise ConfigError(
                        f"{first.path} and {run.path} cannot be compared: {section}.{key} is {there.get(key)!r} in one "
                        f"and {here.get(key)!r} in the other; compare runs on the same data and split, or put any runs "
                        "side by side with headwater report"
                    )
    splits: dict[int, tuple[Path, str]] = {}
    for run in runs:
        sha256 = str((run.partition or {}).get("sha256", ""))
        path, known = splits.setdefault(run.seed, (run.path, sha256))
        if known != sha256:
            raise ConfigError(
                f"{path} and {run.path} have the same seed {run.seed} and another split, so their data has changed in "
                "between; repeat one of them"
            )
    check_path(options.out or RUNS)
    data = plain_name(str(first.config.get("data", {}).get("name", "runs")))
    asked = {str(run.path.resolve()): "" for run in runs}
    out = options.out or directory_for(RUNS / f"compare-{data}", {"from": str(sorted(asked))})
    out.mkdir(parents=True, exist_ok=True)
    return _show([run.path for run in runs], out, target, baseline, options)


def _default_out(configs: list[list[Config]], tuned: str = "") -> Path:
    """runs/compare-<data>-001, or the next number if that one compares under other settings."""
    from headwater.api import place
    from headwater.sweep import identity

    asked = {str(place(Path(), config)): identity(config) + tuned for each in configs for config in each}
    return directory_for(RUNS / f"compare-{plain_name(configs[0][0].data.name)}", asked)


def print_method_table(by_method: MethodTable) -> None:
    """Print one row per method with the best of each column marked, and the notes below it."""
    from headwater.report.method_text import best_rows, columns, notes

    shown = columns(by_method)
    best = [best_rows(by_method, column) for column in shown]
    rows: list[list[CellText]] = [
        [row.method, *((c.text(row), at in wins) for c, wins in zip(shown[1:], best[1:], strict=True))]
        for at, row in enumerate(by_method.rows)
    ]
    right = [column.heading for column in shown if column.key != "method"]
    screen = console()
    screen.print(table([column.heading for column in shown], rows, right=right, whole=24))
    marked = [f"{BEST} marks the best of a column."] if any(best) else []
    for note in [*marked, *notes(by_method)]:
        screen.print(note, style="dim")


def _one_seed(
    configs: list[Config], out: Path, directories: list[Path], options: Options, tuned: Sequence[Mapping[str, Any]]
) -> int:
    """Train all methods at one seed on one engine; the data is read once. `tuned` is the choice of each method."""
    first = configs[0]
    with status(f"{reading(first.data.name)} for seed {first.seed} …", options.quiet):
        from headwater.api import place
        from headwater.data.loading import open_data
        from headwater.sweep.tuning import tuned_facts
        from headwater.training.experiment import prepare

        startup.freeze_gc()
        data = open_data(first.data)
        experiments = [
            replace(prepare(config, data=data), tuned=tuned_facts(found) if found else {})
            for config, found in zip(configs, tuned, strict=True)
        ]
    places = [place(out, each.config) for each in experiments]
    claimed = [claim(path, each.config, options.force) for path, each in zip(places, experiments, strict=True)]
    waiting = [each for each, directory in zip(experiments, claimed, strict=True) if directory.result is None]
    if waiting:
        from headwater.training.loop import open_engine, train

        with open_engine(waiting[0].config, waiting) as engine:
            for each in waiting:
                path = place(out, each.config)
                progress = RunProgress(f"{each.config.method} seed {each.config.seed}", options.quiet)
                try:
                    with progress:
                        train(each, out=path, watch=progress, engine=engine)
                except KeyboardInterrupt:
                    say(f"interrupted in {path} after round {progress.round}; carry on with the same command")
                    return INTERRUPTED
    directories.extend(places)
    return 0


def _show(directories: list[Path], out: Path, target: float | None, baseline: str | None, options: Options) -> int:
    from headwater.report import write
    from headwater.report.method_table import dicts, tabulate
    from headwater.report.runs import read

    by_method = tabulate([read(directory) for directory in directories], target, baseline)
    with status("writing the report …", options.quiet):
        page = write(directories, out / "report.html", target=target, baseline=baseline)
    if options.json:
        as_json(dicts(by_method))
        return 0
    print_method_table(by_method)
    print_lines(f"report: {page}")
    return 0
