"""`headwater reproduce`: a paper's table, its numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    Seeds,
    Sets,
    direct,
    several,
)
from headwater.cli.run import INTERRUPTED
from headwater.cli.show import as_json, say, table
from headwater.cli.show import out as console

if TYPE_CHECKING:
    from headwater.papers.plan import Plan
    from headwater.papers.table import Table
    from headwater.papers.write import Told
    from headwater.sweep import Cell
    from headwater.sweep.processes import Crew

Wanted = Annotated[
    str | None,
    typer.Argument(metavar="[PAPER, PAPER/TABLE or FILE.toml]", show_default=False),
]
ScaleName = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="smoke|small|paper",
        help="About a minute or an hour a table on two cores, or the printed setting.",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", help="Runs at once; 0 for as many as there are cores.")
]
Listed = Annotated[bool, typer.Option("--list", help="Show the tables there are, with a line each, and stop.")]
WIDE = 4  # columns of a table on the screen


def reproduce(
    context: typer.Context,
    source: Wanted = None,
    scale: ScaleName = "smoke",
    sets: Sets = None,
    seed: Seed = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    out: Out = None,
    engine: Engine = None,
    address: Address = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    listed: Listed = False,
    quiet: Quiet = False,
    json: Json = False,
    force: Force = False,
) -> int:
    """Run a paper's table and put its numbers beside ours.

    PAPER alone stands for all of its tables; `--list` or no argument shows what there is. A table of your own is a
    TOML file in the same form. The same command carries on what was interrupted, and skips what is finished.
    """
    from headwater import papers

    if listed or source is None:
        return _list(source, json=json)
    from headwater.cli.cells import crew_for, interrupted
    from headwater.cli.directory import check_path
    from headwater.papers import scales
    from headwater.papers.table import load

    chosen = scales.find(scale)
    tables = [load(name, scales.names()) for name in papers.meant(source)]
    wanted = [each for each in several(seeds, seed) if each is not None] or None
    places = [_place(out, each, scale, alone=len(tables) == 1) for each in tables]
    for place in places:
        check_path(place)
    crew, engine_keys = crew_for(engine, workers, address)
    options = direct(rounds=rounds, data_dir=data_dir) | engine_keys
    plans: list[Plan] = []
    told: list[Told] = []
    statuses = [0]
    with crew:
        try:
            from headwater.cli.progress import status as saying
            from headwater.papers.plan import plan

            for wanted_table, place in zip(tables, places, strict=True):
                with saying(f"reading data for {wanted_table.name} …", quiet):
                    plans.append(
                        plan(wanted_table, chosen, place, crew.sizes, sets=sets or [], direct=options, seeds=wanted)
                    )
            for each, place in zip(plans, places, strict=True):
                status, found = _one(crew, each, place, quiet=quiet, json=json, force=force)
                told.append(found)
                statuses.append(status)
        except KeyboardInterrupt:
            interrupted(context, [cell for each in plans for cell in each.cells])
            return INTERRUPTED
    if json:
        from headwater.papers.write import as_dict

        facts = [as_dict(each) for each in told]
        as_json(facts[0] if len(facts) == 1 else facts)
    return next((code for code in (1, 2) if code in statuses), 0)


def _one(crew: Crew, plan: Plan, out: Path, *, quiet: bool, json: bool, force: bool) -> tuple[int, Told]:
    """Train, read back, write and show one table."""
    from headwater.cli.cells import carry_out, prepare_directories, status_of
    from headwater.cli.progress import status as saying
    from headwater.papers.results import collect
    from headwater.papers.write import Told, put_all

    waiting = prepare_directories(plan.cells, force=force)
    if not quiet:
        _announce(plan, waiting, len(crew))
    ended = carry_out(crew, plan.cells, waiting, quiet=quiet)
    with saying("writing the table …", quiet):
        told = Told.of(collect(plan, ended, out))
        files = put_all(told, out, say)
    if not json:
        _print(told, files)
    failed = [each for each in ended.values() if each.failed]
    if failed:
        say(f"{len(failed)} of {len(plan.cells)} runs failed; they are tried again by the same command")
    return status_of(list(ended.values())), told


def _announce(plan: Plan, waiting: Sequence[Cell], workers: int) -> None:
    """What is about to be done: how many runs, for how long, and what is not as in the paper."""
    from headwater.papers.scales import find
    from headwater.report.numbers import duration

    table = plan.table
    left = sum(cell.weight for cell in waiting) / max(1, min(workers, len(waiting)))
    kept = len(plan.cells) - len(waiting)
    shape = f"{len(table.rows)} rows, {len(table.columns)} columns, {_seeds(len(plan.seeds))}"
    runs = f"{len(plan.cells)} runs{f', of which {kept} are finished' if kept else ''}"
    time = f", about {duration(left)} with {workers} at a time" if waiting else ""
    say(f"{table.title or table.name}: {shape}: {runs}{time}")
    say(f"scale {plan.scale}: {find(plan.scale).about}")
    for sentence in plan.remarks:
        say(sentence)


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _place(out: Path | None, table: Table, scale: str, *, alone: bool) -> Path:
    """Where a table goes; several tables are kept apart below `out`."""
    name = table.name if not table.name.endswith(".toml") else Path(table.name).stem
    if out is None:
        return Path("runs") / "reproduce" / f"{name.replace('/', '-')}-{scale}"
    return out if alone else out / name.partition("/")[2]


def _print(told: Told, files: list[Path]) -> None:
    from headwater.papers.write import heading, legend, text

    results = told.results
    screen = console()
    for start in range(0, len(results.columns), WIDE):
        part = results.columns[start : start + WIDE]
        heads = [heading(results, column) for column in part]
        rows = [[row, *(text(results.entries.get((row, column))) for column in part)] for row in results.rows]
        title = (results.plan.table.title or results.plan.table.name) if start == 0 else ""
        screen.print(table(["", *heads], rows, title=title, right=heads))
    screen.print(legend(results), style="dim")
    for sentence in [*told.failures, *told.claims, *told.orders]:
        screen.print(sentence, markup=False)
    for file in files:
        screen.print(str(file), soft_wrap=True, markup=False)


def _list(source: str | None, *, json: bool) -> int:
    from headwater import papers

    names = papers.meant(source) if source else list(papers.names())
    rows = [{"name": name, "summary": papers.names().get(name, "")} for name in names]
    if json:
        as_json(rows)
    else:
        console().print(table(["name", "summary"], [[row["name"], row["summary"]] for row in rows]))
    return 0
