"""`headwater run` and `headwater resume`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import startup
from headwater.cli.options import Options, Source, takes
from headwater.cli.terminal import as_json, console, pairs, reading, say

if TYPE_CHECKING:
    from headwater.config import Config

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
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
    from headwater.cli.directory import stored
    from headwater.config.load import nested

    if force and directory.is_dir():
        from headwater.training.run_lock import RunLock

        with RunLock(directory, force=True):  # which removes it
            pass
    return _train(stored(directory).merged(nested(options.keys())), directory, options)


def _train(config: Config, out: Path, options: Options) -> int:
    """Train in a directory, continue the run there, or show it if it is finished."""
    from headwater.cli.directory import check_path, claim
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
    from headwater.report.numbers import count, duration, percent, size

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
