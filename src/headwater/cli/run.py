"""`headwater run` and `headwater resume`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import startup
from headwater.cli.directories import check_path, claim, run_stem, stored, write_config
from headwater.cli.options import Options, Source, takes
from headwater.cli.terminal import as_json, console, pairs, reading, say
from headwater.errors import DataError, OutputError
from headwater.report.numbers import count, duration, percent, size
from headwater.training.run_numbers import LATEST, RUNS, numbered, point_latest

if TYPE_CHECKING:
    from headwater.config import Config

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
DirectoryOrNewest = Annotated[Path | None, typer.Argument(metavar="[DIR]", show_default=False)]
Start = Annotated[
    Path | None,
    typer.Option("--from", metavar="DIR", help="Start from the trained model of another run (model.start)."),
]
Show = Annotated[
    bool, typer.Option("--show", help="Print the whole configuration, where each value comes from, and stop.")
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Carry on although a process of another machine, which is gone, left its lock, or on another kind of "
        "device, which changes last digits.",
    ),
]
INTERRUPTED = 130  # exit status after Ctrl-C
REPORT, RESULT = "report.html", "result.json"
TIERS = {"server_sector": "server – sectors", "sector_client": "sectors – clients"}


@takes("sets seed rounds out start show engine address workers device data_dir quiet json force")
def run(options: Options, source: Source = None, start: Start = None, show: Show = False) -> int:
    """Train one method.

    The argument is a preset (see `headwater list presets`), a TOML file or simply the name of a method; without it,
    FedHEAD on the embedded digits. Results go to runs/METHOD-DATA-001, the next run to -002 and so on; runs/latest is
    the newest.

    Example: `headwater run fedavg --set data.name=fashion_mnist --set partition.alpha=0.3 --rounds 50`

    Keys that are often set: data.name, partition.clients, partition.sectors, partition.alpha, model.name,
    local.epochs, local.lr, local.batch. `headwater config` explains all.
    """
    from headwater.config import Config

    if start is not None and not start.expanduser().exists():
        raise OutputError(f"--from: there is no {start}; name the directory of a finished run (model.start)")
    keys = options.keys() | ({} if start is None else {"model__start": str(start.expanduser().resolve())})
    config = Config.load(source, options.sets or [], **keys)
    if show:
        return _show(config, source, keys, options)
    return _train(config, options.out, options)


def _show(config: Config, source: str | None, keys: dict[str, Any], options: Options) -> int:
    from headwater.cli.show import annotated
    from headwater.cli.terminal import status

    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.training.experiment import prepare

        try:
            config = prepare(config).config
        except DataError as error:
            say(f"without keys that follow from the data, since that cannot be read: {error}")
    if options.json:
        as_json(config.tree())
    else:
        print(annotated(config, source, options.sets or [], keys))
    return 0


@takes("engine address workers device data_dir quiet json force")
def resume(options: Options, directory: DirectoryOrNewest = None, force: TakeOver = False) -> int:
    """Carry on a run that stopped.

    DIR is where it writes its results; without it, runs/latest. It ends with the same bits as a run that was never
    stopped. `headwater runs` lists what there is.

    Example: `headwater resume runs/fedhead-digits-001`
    """
    from headwater.config.load import nested

    directory = _newest() if directory is None else _without_link(directory)
    if force and directory.is_dir():
        from headwater.training.run_lock import RunLock

        with RunLock(directory, force=True):  # which removes it
            pass
    config = stored(directory).merged(nested(options.keys()))
    if force:
        from headwater.tasks import devices
        from headwater.training.run_directory import RunDirectory

        RunDirectory(directory, config).allow_device(devices.find(config.engine.device).type)
    return _train(config, directory, options)


def _newest() -> Path:
    """The run that runs/latest points to."""
    link = RUNS / LATEST
    if not link.is_dir():
        raise OutputError(
            f"there is no {link}, which is the newest run that was begun without --out; name the directory of a run"
        )
    return _without_link(link)


def _without_link(directory: Path) -> Path:
    """The directory itself for a link such as runs/latest, which may soon point to another run."""
    return directory.parent / directory.readlink() if directory.is_symlink() else directory


def _train(config: Config, out: Path | None, options: Options) -> int:
    """Train in a directory, continue the run there, or show it if it is finished.

    Args:
        config: the configuration.
        out: the directory; None for a new one that is numbered.
        options: of the command.
    """
    from headwater.cli.terminal import RunProgress, status

    check_path(out or RUNS)
    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.training.experiment import prepare
        from headwater.training.opening import check_needs

        startup.freeze_gc()
        experiment = prepare(config)
        check_needs(experiment)
    if out is None:
        out = numbered(run_stem(config), lambda folder: write_config(folder, experiment.config))
        point_latest(out)
        if not options.quiet:
            say(f"results go to {out}")
    directory = claim(out, experiment.config, options.force)
    progress = RunProgress(config.method, options.quiet)
    try:
        if directory.result is not None:
            say(f"{out} already holds this run, finished; start anew with --force")
        else:
            from headwater.training.loop import train

            if (out / RESULT).exists():
                say(f"{out / RESULT} is not a result and is written again")
            with progress:
                train(experiment, out=out, watch=progress)
        if not (out / REPORT).exists():
            from headwater import report

            with status("writing the report …", options.quiet):
                report.write([out], out / REPORT)
    except KeyboardInterrupt:
        say(f"interrupted after round {progress.round}; carry on with: headwater resume {shlex.quote(str(out))}")
        return INTERRUPTED
    facts = directory.result or {}
    if options.json:
        as_json(facts)
    else:
        console().print(pairs(_lines(facts, out), f"{facts['label']} on {facts['data']}"))
    return 0


def _lines(facts: dict[str, Any], out: Path) -> Iterator[tuple[str, str]]:
    yield "accuracy", percent(facts["accuracy"])
    if (ends := facts.get("accuracy_ci95")) is not None:
        over = "the test set" if "ordinary_wilson" in facts.get("intervals", {}) else "clients"
        yield "", f"{percent(ends[0], 2)} to {percent(ends[1], 2)}: 95 % interval over {over}"
    by = "" if facts.get("best_by") != "validation accuracy" else ", by the validation set"
    yield "best round", f"{facts['best_round']} of {facts['rounds']}, {percent(facts['best_accuracy'])}{by}"
    if "local_accuracy" in facts:
        spread = facts["local_accuracy_spread"]
        ends = f"mean over clients, from {percent(spread['min'])} to {percent(spread['max'])}"
        yield "local accuracy", f"{percent(facts['local_accuracy'])} ({ends})"
    if "ensemble_accuracy" in facts:
        yield "ensemble accuracy", percent(facts["ensemble_accuracy"])
    for tier, words in TIERS.items():
        moved = facts["ledger"][tier]
        sizes = f"{size(moved['up_bytes'])} up, {size(moved['down_bytes'])} down"
        trips = moved["round_trips"]
        yield words, f"{sizes}, {count(trips)} round trip{'s' * (trips != 1)}"
    if "privacy" in facts:
        yield "privacy", facts["privacy"]["sentence"]
    for sentence in facts.get("remarks", []):
        yield "remark", sentence
    for sentence in facts.get("notes", []):
        yield "note", sentence
    yield "time", duration(facts["seconds"])
    yield "report", str(out / REPORT)
