"""`headwater compare`, several methods on the same data, split and seeds; `headwater report`, from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import startup
from headwater.cli.options import Options, Target, takes
from headwater.cli.run import INTERRUPTED, check_path, claim, plain_name
from headwater.cli.terminal import RunProgress, as_json, console, print_lines, reading, say, status, table
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.report.method_table import MethodTable

Methods = Annotated[list[str], typer.Argument(metavar="METHOD METHOD …", show_default=False)]
Directories = Annotated[list[Path], typer.Argument(metavar="DIR …", show_default=False)]
Based = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="PRESET or FILE.toml", help="What the compared runs share; the defaults if left out."
    ),
]


@takes("sets seed seeds rounds target out engine address workers data_dir quiet json force")
def compare(options: Options, methods: Methods, config: Based = None, target: Target = None) -> int:
    """Compare methods on the same data.

    Each method (see `headwater list algorithms`) gets the same data, split and seeds. Finished runs are kept and
    skipped on the next call.
    """
    from headwater.config import Config
    from headwater.report.method_table import check_target

    check_target(target, "--target")
    repeated = [method for method in methods if methods.count(method) > 1]
    if repeated:
        raise ConfigError(f"{repeated[0]!r} is named twice; name each method once")
    configs = [
        Config.load_each(methods, config, options.sets or [], **options.keys() | {"seed": seed})
        for seed in options.all_seeds()
    ]  # by seed and method; a seed of None is left out
    out = options.out or Path("runs") / f"compare-{plain_name(configs[0][0].data.name)}"
    check_path(out)
    directories: list[Path] = []
    for each in configs:
        if code := _one_seed(each, out, directories, options):
            return code
    return _show(directories, out, target, options)


@takes("target out quiet json")
def report(options: Options, directories: Directories, target: Target = None) -> None:
    """Write a report from runs.

    A page, a picture and tables, of one run or of many. A DIR may also be that of a comparison.
    """
    from headwater.report import export
    from headwater.report.method_table import check_target, dicts, tabulate
    from headwater.report.runs import find

    check_target(target, "--target")
    runs = find(directories)
    out = options.out or (directories[0] / "report" if len(directories) == 1 else Path("runs") / "report")
    check_path(out)
    by_method = tabulate(runs, target)
    for damaged in filter(None, (run.damage for run in runs)):
        say(damaged)
    with status("writing the report …", options.quiet):
        files = export(directories, out, target=target)
    if options.json:
        as_json({"files": [str(file) for file in files], "rows": dicts(by_method)})
        return
    print_method_table(by_method)
    print_lines(*files)


def print_method_table(by_method: MethodTable) -> None:
    """Print one row per method with the best of each column marked, and the notes below it."""
    from headwater.report.method_table import columns, notes, winners

    shown = columns(by_method)
    best = [winners(by_method, column) for column in shown]
    rows = [
        [(column.text(row), at in wins) for column, wins in zip(shown, best, strict=True)]
        for at, row in enumerate(by_method.rows)
    ]
    right = [column.heading for column in shown if column.key != "method"]
    screen = console()
    screen.print(table([column.heading for column in shown], rows, right=right))
    for note in notes(by_method):
        screen.print(note, style="dim")


def _one_seed(configs: list[Config], out: Path, directories: list[Path], options: Options) -> int:
    """Train all methods at one seed on one engine; the data is read once."""
    first = configs[0]
    with status(f"{reading(first.data.name)} for seed {first.seed} …", options.quiet):
        from headwater.api import place
        from headwater.data.loading import open_data
        from headwater.training.experiment import prepare

        startup.freeze_gc()
        data = open_data(first.data)
        experiments = [prepare(config, data=data) for config in configs]
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


def _show(directories: list[Path], out: Path, target: float | None, options: Options) -> int:
    from headwater.report import write
    from headwater.report.method_table import dicts, tabulate
    from headwater.report.runs import read

    with status("writing the report …", options.quiet):
        page = write(directories, out / "report.html", target=target)
    by_method = tabulate([read(directory) for directory in directories], target)
    if options.json:
        as_json(dicts(by_method))
        return 0
    print_method_table(by_method)
    print_lines(f"report: {page}")
    return 0
