"""`headwater run` and `headwater resume`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import startup
from headwater.cli.options import (
    Address,
    DataDir,
    Engine,
    Force,
    Json,
    Out,
    Quiet,
    Rounds,
    Seed,
    Sets,
    Source,
    Workers,
    configure,
)
from headwater.cli.show import as_json, pairs, say
from headwater.cli.show import out as console

if TYPE_CHECKING:
    from headwater.config import Config

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
INTERRUPTED = 130
REPORT = "report.html"
INTERVALS = {
    "ordinary_wilson": "95 % interval of one test set (Wilson)",
    "bootstrap_mean_as_in_fedhead": "95 % bootstrap interval of the mean, as in the FedHEAD paper",
}
TIERS = {"server_sector": "server – sectors", "sector_client": "sectors – clients"}


def run(
    source: Source = None,
    sets: Sets = None,
    seed: Seed = None,
    rounds: Rounds = None,
    out: Out = None,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    force: Force = False,
) -> int:
    """Train one method.

    The argument is a preset (see `headwater list presets`), a TOML file or simply the name of a method; without it,
    FedHEAD on the embedded digits.
    """
    elsewhere = {"engine": engine, "address": address, "workers": workers, "data_dir": data_dir}
    config = configure(source, sets, seed=seed, rounds=rounds, **elsewhere)
    return carry_out(config, out or default_out(config), quiet=quiet, json=json, force=force)


def resume(
    directory: Directory,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Carry on a run that stopped.

    DIR is where it writes its results. It ends with the same bits as a run that was never stopped.
    """
    from headwater.cli.directory import stored
    from headwater.cli.options import direct
    from headwater.config.load import nested

    config = stored(directory)
    elsewhere = nested(direct(engine=engine, workers=workers, data_dir=data_dir, address=address))
    return carry_out(config.merged(elsewhere), directory, quiet=quiet, json=json, force=False)


def carry_out(config: Config, out: Path, *, quiet: bool, json: bool, force: bool) -> int:
    """Train in a directory, or carry on there, or show what is finished."""
    from headwater.cli.directory import check_path, claim
    from headwater.cli.progress import Watch, status

    check_path(out)
    with status(f"reading {config.data.name} …", quiet):
        from headwater.training.experiment import prepare

        startup.end()
        experiment = prepare(config)
    directory = claim(out, experiment.config, force)
    watch = Watch(config.method, quiet)
    try:
        if directory.result is not None:
            say(f"{out} already holds this run, finished; start anew with --force")
        else:
            from headwater.training.loop import train

            with watch:
                train(experiment, out=out, watch=watch)
        if not (out / REPORT).exists():
            from headwater import report

            with status("writing the report …", quiet):
                report.write([out], out / REPORT)
    except KeyboardInterrupt:
        say(f"interrupted after round {watch.round}; carry on with: headwater resume {shlex.quote(str(out))}")
        return INTERRUPTED
    facts = directory.result or {}
    if json:
        as_json(facts)
    else:
        console().print(pairs(_lines(facts, out), f"{facts['label']} on {facts['data']}"))
    return 0


def default_out(config: Config) -> Path:
    """runs/<method>-<data>-seed<seed>, with a path's last part for data of one's own."""
    return Path("runs") / f"{plain_name(config.method)}-{plain_name(config.data.name)}-seed{config.seed}"


def plain_name(name: str) -> str:
    """A method's or data set's name as a part of a directory's name."""
    return Path(name).name.removesuffix(".npz").replace(":", ".")


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
        told = f"mean over clients, from {percent(spread['min'])} to {percent(spread['max'])}"
        yield "local accuracy", f"{percent(facts['local_accuracy'])} ({told})"
    if "ensemble_accuracy" in facts:
        yield "ensemble accuracy", percent(facts["ensemble_accuracy"])
    for tier, words in TIERS.items():
        moved = facts["ledger"][tier]
        told = (
            f"{size(moved['up_bytes'])} up, {size(moved['down_bytes'])} down, {count(moved['round_trips'])} round trips"
        )
        yield words, told
    if "privacy" in facts:
        yield "privacy", facts["privacy"]["sentence"]
    for sentence in facts.get("remarks", []):
        yield "remark", sentence
    yield "time", duration(facts["seconds"])
    yield "report", str(out / REPORT)
