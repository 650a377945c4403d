"""`headwater run` and `headwater resume`, and the checks of the directory that a run writes to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import startup
from headwater.cli.options import Options, Source, takes
from headwater.cli.terminal import as_json, console, pairs, reading, say
from headwater.errors import ConfigError, OutputError
from headwater.report.numbers import count, duration, percent, size

if TYPE_CHECKING:
    from headwater.config import Config
    from headwater.training.run_directory import RunDirectory

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
CONFIG, CHECKPOINTS = "config.toml", "checkpoints"
FILES = (
    "rounds.jsonl",
    "timeline.jsonl",
    "result.json",
    "model.safetensors",
    "model.md",
    "partition.json",
    "report.html",
    "cell.json",  # of a run of a sweep
)
TakeOver = Annotated[
    bool, typer.Option("--force", help="Carry on although a process of another machine, which is gone, left its lock.")
]
LONGEST = 100  # letters of a method's or data set's name in the name of a directory
INTERRUPTED = 130  # exit status after Ctrl-C
REPORT, RESULT = "report.html", "result.json"
INTERVALS = {
    "ordinary_wilson": "95 % interval of one test set (Wilson)",
    "bootstrap_mean_as_in_fedhead": "95 % bootstrap interval of the mean, as in the FedHEAD paper",
}
TIERS = {"server_sector": "server – sectors", "sector_client": "sectors – clients"}


@takes("sets seed rounds out engine address workers data_dir quiet json force")
def run(options: Options, source: Source = None) -> int:
    """Train one method.

    The argument is a preset (see `headwater list presets`), a TOML file or simply the name of a method; without it,
    FedHEAD on the embedded digits.
    """
    config = options.config(source)
    return _train(config, options.out or default_out(config), options)


@takes("engine address workers data_dir quiet json force")
def resume(options: Options, directory: Directory, force: TakeOver = False) -> int:
    """Carry on a run that stopped.

    DIR is where it writes its results. It ends with the same bits as a run that was never stopped.
    """
    from headwater.config.load import nested

    if force and directory.is_dir():
        from headwater.training.run_lock import RunLock

        with RunLock(directory, force=True):  # which removes it
            pass
    return _train(stored(directory).merged(nested(options.keys())), directory, options)


def _train(config: Config, out: Path, options: Options) -> int:
    """Train in a directory, continue the run there, or show it if it is finished."""
    from headwater.cli.terminal import RunProgress, status

    check_path(out)
    with status(f"{reading(config.data.name)} …", options.quiet):
        from headwater.training.experiment import prepare

        startup.freeze_gc()
        experiment = prepare(config)
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


def default_out(config: Config) -> Path:
    """runs/<method>-<data>-seed<seed>; data files are named by the last part of their path."""
    return Path("runs") / f"{plain_name(config.method)}-{plain_name(config.data.name)}-seed{config.seed}"


def plain_name(name: str) -> str:
    """The name of a method or data set as part of a directory name, which cannot be of any length."""
    return Path(name).name.removesuffix(".npz").replace(":", ".")[:LONGEST]


def _lines(facts: dict[str, Any], out: Path) -> Iterator[tuple[str, str]]:
    yield "accuracy", percent(facts["accuracy"])
    intervals = facts.get("intervals", {})
    for key, words in INTERVALS.items():
        if key in intervals:
            low, high = intervals[key]
            yield "", f"{percent(low, 2)} to {percent(high, 2)}: {words}"
    yield "best round", f"{facts['best_round']} of {facts['rounds']}, {percent(facts['best_accuracy'])}"
    if "local_accuracy" in facts:
        spread = facts["local_accuracy_spread"]
        ends = f"mean over clients, from {percent(spread['min'])} to {percent(spread['max'])}"
        yield "local accuracy", f"{percent(facts['local_accuracy'])} ({ends})"
    if "ensemble_accuracy" in facts:
        yield "ensemble accuracy", percent(facts["ensemble_accuracy"])
    for tier, words in TIERS.items():
        moved = facts["ledger"][tier]
        sizes = f"{size(moved['up_bytes'])} up, {size(moved['down_bytes'])} down"
        yield words, f"{sizes}, {count(moved['round_trips'])} round trips"
    if "privacy" in facts:
        yield "privacy", facts["privacy"]["sentence"]
    for sentence in facts.get("remarks", []):
        yield "remark", sentence
    yield "time", duration(facts["seconds"])
    yield "report", str(out / REPORT)


def check_path(out: Path) -> None:
    """Refuse a path that cannot become a directory, before data is read.

    Raises:
        OutputError: if the path or one of its parents is a file.
    """
    for part in (out, *out.parents):
        if part.exists() and not part.is_dir():
            raise OutputError(f"{part} is a file, so results cannot go to {out}; choose another --out")


def claim(out: Path, config: Config, force: bool) -> RunDirectory:
    """Open the directory of a run.

    Args:
        out: the directory.
        config: the configuration of the run.
        force: remove the files of another run there; other files are kept.

    Raises:
        OutputError: if the directory holds another run or foreign files, or `force` and a process writes to it.
    """
    from headwater.config.tree import HEADER
    from headwater.training.run_directory import RunDirectory
    from headwater.training.run_lock import RunLock

    check_path(out)
    file = out / CONFIG
    if file.exists() and not file.read_bytes().startswith(HEADER.splitlines()[0].encode()):
        raise OutputError(f"{file} was not written by a run and is left alone; choose another --out")
    if force and out.is_dir():
        with RunLock(out, force=True):
            clear(out)
    elif not file.exists() and any((out / name).exists() for name in (*FILES, CHECKPOINTS)):
        raise OutputError(
            f"{out} holds parts of a run but no {CONFIG}; choose another --out, or start anew with --force"
        )
    try:
        return RunDirectory(out, config)
    except (ConfigError, UnicodeDecodeError) as error:
        raise OutputError(
            f"{file} cannot be read ({error}); choose another --out, or start anew with --force"
        ) from None


def clear(out: Path) -> None:
    """Remove the files of a run and no others.

    The configuration is removed last, so that an interrupted removal still leaves a run.
    """
    checkpoints = out / CHECKPOINTS
    for folder, pattern in (
        (checkpoints, "round-*.json"),
        (checkpoints, CONFIG),
        (checkpoints, ".*.draft"),
        (checkpoints / "values", "*"),
        (out, ".*.draft"),
    ):
        for item in folder.glob(pattern):
            item.unlink()
    for folder in (checkpoints / "values", checkpoints):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for name in (*FILES, CONFIG):
        (out / name).unlink(missing_ok=True)


def stored(directory: Path) -> Config:
    """The configuration of the run in a directory.

    Raises:
        OutputError: if there is no run, or its configuration cannot be read.
    """
    from headwater.config import Config

    file = directory / CONFIG
    if not directory.is_dir():
        raise OutputError(f"there is no directory {directory}; name the directory of a run")
    if not file.is_file():
        raise OutputError(
            f"{directory} holds no {CONFIG}, so it is not the directory of a run; name the one that --out gave"
        )
    try:
        return Config.from_toml(file.read_text(encoding="utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise OutputError(f"{file} cannot be read ({error}); restore it, or start the run anew") from None
