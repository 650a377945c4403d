"""`headwater tune`: a few rounds with each setting, judged on the validation set alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.options import Options, takes
from headwater.cli.sweep import Grid, axis
from headwater.cli.terminal import CellText, RunProgress, as_json, console, print_lines, reading, status, table
from headwater.errors import ConfigError
from headwater.report.numbers import percent

if TYPE_CHECKING:
    from headwater.training.experiment import Experiment

Method = Annotated[str, typer.Argument(metavar="METHOD, PRESET or FILE.toml", show_default=False)]
Budget = Annotated[
    int | None,
    typer.Option("--budget", metavar="N", help="Rounds for each setting; else a fifth of the run's, at least 3."),
]
SHARE, LEAST = 5, 3


@takes("sets seed rounds grid budget engine address workers device data_dir quiet json")
def tune(options: Options, source: Method, grid: Grid = None, budget: Budget = None) -> None:
    """Choose settings of a method: the same small budget for each, judged on the validation set alone.

    Every combination of the values is trained for a few rounds. The test set is not looked at, and nothing is written.
    Ends with the options that repeat the best setting.

    Example: `headwater tune fedavg --grid local.lr=0.001,0.01,0.1 --grid local.epochs=1,5`
    """
    from headwater.config import Config

    axes = [axis(text) for text in grid or []]
    if not axes:
        raise ConfigError("tuning needs at least one --grid KEY=V1,V2, such as --grid local.lr=0.01,0.1")
    if budget is not None and budget < 1:
        raise ConfigError(f"--budget must be at least 1 round, got {budget}")
    points = [dict(zip([key for key, _ in axes], values, strict=True)) for values in product(*(v for _, v in axes))]
    configs = [
        Config.load(
            source, [*(options.sets or []), *(f"{key}={value}" for key, value in point.items())], **options.keys()
        )
        for point in points
    ]
    rounds = budget or max(LEAST, configs[0].rounds // SHARE)
    found = []
    for point, config in zip(points, configs, strict=True):
        with status(f"{reading(config.data.name)} …", options.quiet):
            from headwater.training.experiment import prepare

            experiment = _judged(prepare(config.merged({"rounds": rounds, "eval_every": rounds})))
        from headwater.training.loop import train

        with RunProgress(", ".join(f"{key}={value}" for key, value in point.items()), options.quiet) as progress:
            found.append(train(experiment, watch=progress).accuracy)
    best = max(range(len(points)), key=lambda at: found[at])
    _show(points, found, best, rounds, options)


def _judged(experiment: Experiment) -> Experiment:
    """The experiment with the validation set in the place of the test set."""
    split = experiment.split
    if not len(split.validation):
        raise ConfigError("tuning judges settings on the validation set; set data.validation above 0")
    return replace(experiment, split=replace(split, test=split.validation))


def _show(points: list[dict[str, str]], found: list[float], best: int, rounds: int, options: Options) -> None:
    rows: list[dict[str, Any]] = [
        {"settings": point, "validation_accuracy": accuracy} for point, accuracy in zip(points, found, strict=True)
    ]
    chosen = " ".join(f"--set {key}={value}" for key, value in points[best].items())
    if options.json:
        as_json({"rounds": rounds, "rows": rows, "best": points[best]})
        return
    head = [*points[0], "validation accuracy"]
    cells: list[list[CellText]] = [
        [*point.values(), (percent(found[at]), at == best)] for at, point in enumerate(points)
    ]
    console().print(table(head, cells, title=f"{rounds} rounds each", right=head[-1:]))
    print_lines(f"best on the validation set: {chosen}")
