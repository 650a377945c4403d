"""`headwater compare`: several methods on the same data, split and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import startup
from headwater.cli.options import (
    Address,
    Based,
    DataDir,
    Engine,
    Force,
    Json,
    Out,
    Quiet,
    Rounds,
    Seed,
    Seeds,
    Sets,
    Workers,
    direct,
    several,
)
from headwater.cli.run import INTERRUPTED, plain_name
from headwater.cli.show import as_json, say, table
from headwater.cli.show import out as console
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.report.tables import Summary

Methods = Annotated[list[str], typer.Argument(metavar="METHOD METHOD …", show_default=False)]
Target = Annotated[
    float | None,
    typer.Option(
        "--target", metavar="ACCURACY", help="Count rounds and bytes to this accuracy; else the highest that all reach."
    ),
]


def compare(
    methods: Methods,
    config: Based = None,
    sets: Sets = None,
    seed: Seed = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    target: Target = None,
    out: Out = None,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    force: Force = False,
) -> int:
    """Compare methods on the same data.

    Each method (see `headwater list algorithms`) gets the same data, split and seeds. Finished runs are kept and
    skipped on the next call.
    """
    from headwater.cli.directory import check_path
    from headwater.config import Config

    check_target(target)
    repeated = [method for method in methods if methods.count(method) > 1]
    if repeated:
        raise ConfigError(f"{repeated[0]!r} is named twice; name each method once")
    options = direct(rounds=rounds, engine=engine, workers=workers, data_dir=data_dir, address=address)
    wanted = several(seeds, seed)
    plan = [
        (one, each) for one in wanted for each in Config.load_each(methods, config, sets or [], **options, seed=one)
    ]  # a seed of None is left out
    out = out or Path("runs") / f"compare-{plain_name(plan[0][1].data.name)}"
    check_path(out)
    done: list[Path] = []
    for one in wanted:
        status = _one_seed([each for at, each in plan if at == one], out, done, quiet=quiet, force=force)
        if status:
            return status
    return _show(done, out, target, json=json, quiet=quiet)


def _one_seed(configs: list[Config], out: Path, done: list[Path], *, quiet: bool, force: bool) -> int:
    """All methods at one seed, on one engine; the data is read once."""
    from headwater.cli.directory import claim
    from headwater.cli.progress import Watch, status

    first = configs[0]
    with status(f"reading {first.data.name} for seed {first.seed} …", quiet):
        from headwater.api import place
        from headwater.data.loading import open_data
        from headwater.training.experiment import prepare

        startup.end()
        data = open_data(first.data)
        experiments = [prepare(config, data=data) for config in configs]
    places = [place(out, each.config) for each in experiments]
    held = [claim(directory, each.config, force) for directory, each in zip(places, experiments, strict=True)]
    waiting = [each for each, directory in zip(experiments, held, strict=True) if directory.result is None]
    if waiting:
        from headwater.training.loop import open_engine, train

        with open_engine(waiting[0].config, waiting) as engine:
            for each in waiting:
                directory = place(out, each.config)
                watch = Watch(f"{each.config.method} seed {each.config.seed}", quiet)
                try:
                    with watch:
                        train(each, out=directory, watch=watch, engine=engine)
                except KeyboardInterrupt:
                    say(f"interrupted in {directory} after round {watch.round}; carry on with the same command")
                    return INTERRUPTED
    done.extend(places)
    return 0


def _show(directories: list[Path], out: Path, target: float | None, *, json: bool, quiet: bool) -> int:
    from headwater import report
    from headwater.cli.progress import status
    from headwater.report.runs import read
    from headwater.report.tables import dicts, summary

    with status("writing the report …", quiet):
        page = report.write(directories, out / "report.html", target=target)
    found = summary([read(directory) for directory in directories], target)
    if json:
        as_json(dicts(found))
        return 0
    print_summary(found)
    console().print(f"report: {page}", soft_wrap=True)
    return 0


def check_target(target: float | None) -> None:
    if target is not None and not 0 < target < 1:
        raise ConfigError(f"--target is an accuracy between 0 and 1, got {target}; 0.8 stands for 80 %")


def print_summary(found: Summary) -> None:
    """A row a method, the best of each column marked, and what a reader must know below it."""
    from headwater.report.tables import columns, notes, winners

    shown = columns(found)
    best = [winners(found, column) for column in shown]
    rows = [
        [(column.text(row), at in wins) for column, wins in zip(shown, best, strict=True)]
        for at, row in enumerate(found.rows)
    ]
    right = [column.heading for column in shown if column.key != "method"]
    screen = console()
    screen.print(table([column.heading for column in shown], rows, right=right))
    for note in notes(found):
        screen.print(note, style="dim")
