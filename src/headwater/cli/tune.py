"""`headwater tune`: settings of a method, chosen on the validation set alone; `compare --tune` does it for each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.directories import check_path, directory_for, plain_name
from headwater.cli.options import Options, takes
from headwater.cli.sweep import axis
from headwater.cli.terminal import CellText, RunProgress, as_json, console, print_lines, reading, say, status, table
from headwater.errors import ConfigError
from headwater.report.numbers import duration, percent
from headwater.training.run_numbers import RUNS

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.data.base import Data
    from headwater.sweep.tuning import Axis, Point
    from headwater.training.result import Event

Method = Annotated[str, typer.Argument(metavar="METHOD, PRESET or FILE.toml", show_default=False)]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="KEY or KEY=V1,V2",
        help="A key and its values; without values, those of the paper or five around the default. Repeatable; "
        "local.lr if left out.",
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget", metavar="N", help="Rounds of a setting that reaches the end; else a fifth of the run's, at least 3."
    ),
]


@takes("sets seed rounds grid budget out engine address workers device data_dir quiet json")
def tune(options: Options, source: Method, grid: Grid = None, budget: Budget = None) -> None:
    """Choose settings of a method on the validation set alone.

    Every combination of the values is trained for a few rounds; the better third goes on, until the best of the last
    two is taken. The test set is not looked at. Ends with the options that repeat the best setting; they are in
    tune.json too, with the cost.

    Example: `headwater tune fedavg --grid local.lr --grid local.epochs=1,5`
    """
    from headwater.config import Config

    def configured(point: Point) -> Config:
        pairs = [f"{key}={value}" for key, value in point.items()]
        return Config.load(source, [*(options.sets or []), *pairs], **options.keys())

    check_path(options.out or RUNS)
    axes = axes_of(grid or ["local.lr"], "--grid")
    config = configured({})
    for key, values in axes:
        for value in values:
            configured({key: value})  # refuses what there is not, before data is read
    stem = RUNS / f"tune-{plain_name(config.method)}-{plain_name(config.data.name)}"
    asked = {"tune": f"{config.to_toml()}{axes}{budget}"}
    out = options.out or directory_for(stem, asked)
    found = tune_one(configured, axes, out, budget, options)
    if not found:
        raise ConfigError(f"{config.method} has no {' and no '.join(key for key, _ in axes)}; tune another key")
    _show(found, out, options)
    tell_edges(found, config.method)


def tell_edges(found: Mapping[str, Any], method: str) -> None:
    """Say which chosen numbers are the smallest or largest that were tried, so that better ones may lie beyond."""
    from headwater.sweep.tuning import at_edge

    sides = {1: ("largest", "larger"), -1: ("smallest", "smaller")}
    for key, value in found.get("best", {}).items():
        if side := at_edge(found, key):
            superlative, comparative = sides[side]
            say(
                f"{method}: {key}={value} is the {superlative} value that was tried; "
                f"{comparative} ones may be better: give them with {key}=V1,V2,…"
            )


def axes_of(texts: Sequence[str], option: str) -> list[Axis]:
    """The keys and values of `--grid` or `--tune`; a key without values gets the default grid."""
    axes: list[Axis] = [axis(text, option) if "=" in text else (text.strip(), ()) for text in texts]
    for key, _ in axes:
        if not key:
            raise ConfigError(f"{option} takes KEY or KEY=V1,V2, such as local.lr")
        if [each for each, _ in axes].count(key) > 1:
            raise ConfigError(f"{option} names {key} twice; give all of its values at once")
    return axes


def tune_each(
    configured: Sequence[Callable[[Point], Config]],
    axes: Sequence[Axis],
    outs: Sequence[Path],
    budget: int | None,
    options: Options,
) -> list[dict[str, Any]]:
    """Tune several methods on the same data, with the same number of settings and rounds; see `tune_one`."""
    configs = [each({}) for each in configured]
    with status(f"{reading(configs[0].data.name)} …", options.quiet):
        from headwater.data.loading import open_data
        from headwater.sweep import tuning
        from headwater.training.experiment import prepare

        data = open_data(configs[0].data)
        most = tuning.fewest([prepare(config, data=data).config for config in configs], axes)
    pairs = zip(configured, outs, strict=True)
    return [tune_one(each, axes, out, budget, options, data, most) for each, out in pairs]


def tune_one(
    configured: Callable[[Point], Config],
    axes: Sequence[Axis],
    out: Path,
    budget: int | None,
    options: Options,
    data: Data | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """Tune one method; returns the content of tune.json, or nothing if the method has none of the keys.

    Args:
        configured: the configuration with some settings.
        axes: keys and values.
        out: directory for tune.json.
        budget: rounds of a setting that reaches the end; None for the default.
        options: `quiet` is used.
        data: data that was read before.
        most: how many settings are tried; None for all.
    """
    if budget is not None and budget < 1:
        raise ConfigError(f"the budget must be at least 1 round, got {budget}")
    config = configured({})
    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.data.loading import open_data
        from headwater.sweep import tuning
        from headwater.training.experiment import prepare

        data = open_data(config.data) if data is None else data
        resolved = prepare(config, data=data).config
        grid = tuning.grid_for(resolved, axes)
    if not grid:
        return {}  # the method has none of the keys
    points = tuning.points_of(grid)
    points = tuning.thinned(points, most or len(points), resolved)
    configs = [configured(point) for point in points]

    @contextmanager
    def trial(name: str) -> Iterator[Callable[[Event], None]]:
        with RunProgress(f"{config.method} {name}", options.quiet) as progress:
            yield progress

    rounds = budget or tuning.budget_of(config.rounds)
    return tuning.tune(points, configs, lambda each: prepare(each, data=data), out, rounds, trial)


def _show(found: dict[str, Any], out: Path, options: Options) -> None:
    from headwater.sweep.tuning import FILE

    best, cost = found["best"], found["cost"]
    if options.json:
        as_json(found)
        return
    head = [*best, "rounds", "validation accuracy"]
    cells: list[list[CellText]] = [
        [
            *row["settings"].values(),
            str(row["rounds"]),
            (percent(row["validation_accuracy"]) if "failed" not in row else "diverged", row["settings"] == best),
        ]
        for row in found["rows"]
    ]
    spent = f"{cost['runs']} settings, {cost['rounds']} rounds in all, {duration(cost['seconds'])}"
    console().print(table(head, cells, title=spent, right=head[-2:]))
    print_lines(f"best on the validation set: {' '.join(f'--set {key}={value}' for key, value in best.items())}")
    print_lines(out / FILE)
