"""`headwater reproduce`: a paper's table, its numbers beside ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.directories import check_path, directory_for
from headwater.cli.options import Baseline, Options, RunsAtOnce, takes
from headwater.cli.run import INTERRUPTED
from headwater.cli.sweep import exit_status, prepare_directories, say_interrupted, start_workers, train_all
from headwater.cli.terminal import as_json, console, print_lines, say, status, table
from headwater.report.numbers import duration
from headwater.training.run_numbers import RUNS

if TYPE_CHECKING:
    from headwater.papers.table import PaperTable
    from headwater.papers.table_files import TableReport
    from headwater.papers.table_plan import TablePlan
    from headwater.sweep import Cell
    from headwater.sweep.processes import SweepWorkers

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
Listed = Annotated[bool, typer.Option("--list", help="Show the tables there are, with a line each, and stop.")]
WIDE = 4  # columns of a table on the screen


@takes("sets seed seeds rounds baseline out engine address workers device data_dir listed quiet json force")
def reproduce(
    options: Options,
    context: typer.Context,
    source: Wanted = None,
    scale: ScaleName = "smoke",
    baseline: Baseline = None,
    workers: RunsAtOnce = None,
    listed: Listed = False,
) -> int:
    """Run a paper's table and put its numbers beside ours.

    PAPER alone stands for all of its tables; `--list` or no argument shows what there is. A table of your own is a
    TOML file in the same form. The same command carries on what was interrupted, and skips what is finished. Without
    --out, results go to runs/reproduce/TABLE-SCALE-001, with other settings to the next number.

    Example: `headwater reproduce fedhead/table2 --scale smoke`
    """
    from headwater import papers

    if listed or source is None:
        return _list(source, json=options.json)
    from headwater.papers import scales
    from headwater.papers.results import check_baseline
    from headwater.papers.table import load

    chosen = scales.find(scale)
    tables = [load(name, scales.names()) for name in papers.meant(source)]
    bases = [check_baseline(each, baseline) for each in tables]
    seeds = [seed for seed in options.all_seeds() if seed is not None] or None
    check_path(options.out or RUNS)
    processes, engine_keys = start_workers(options, workers)
    keys = {key: value for key, value in options.keys().items() if key != "seed"} | engine_keys
    asked = json.dumps([sorted(options.sets or []), options.rounds])
    places = [_place(options.out, each, scale, asked, alone=len(tables) == 1) for each in tables]
    for place in places:
        check_path(place)
    plans: list[TablePlan] = []
    reports: list[TableReport] = []
    statuses = [0]
    with processes:
        try:
            from headwater.papers.table_plan import plan_table

            for each, place in zip(tables, places, strict=True):
                with status(f"reading data for {each.name} …", options.quiet):
                    sets = options.sets or []
                    plans.append(plan_table(each, chosen, place, processes.sizes, sets=sets, direct=keys, seeds=seeds))
            for plan, place, base in zip(plans, places, bases, strict=True):
                code, report = _run_table(processes, plan, place, base, options)
                statuses.append(code)
                reports.append(report)
        except KeyboardInterrupt:
            say_interrupted(context, [cell for plan in plans for cell in plan.cells])
            return INTERRUPTED
    if options.json:
        from headwater.papers.table_files import as_dict

        facts = [as_dict(report) for report in reports]
        as_json(facts[0] if len(facts) == 1 else facts)
    return next((code for code in (1, 2) if code in statuses), 0)


def _run_table(
    processes: SweepWorkers, plan: TablePlan, out: Path, baseline: str, options: Options
) -> tuple[int, TableReport]:
    """Train the runs of one table, then write and print it; returns the exit status and the table."""
    from headwater.papers.results import collect
    from headwater.papers.table_files import TableReport, write_files

    waiting = prepare_directories(plan.cells, force=options.force)
    if not options.quiet:
        _announce(plan, waiting, len(processes))
    outcomes = train_all(processes, plan.cells, waiting, quiet=options.quiet)
    with status("writing the table …", options.quiet):
        report = TableReport.of(collect(plan, outcomes, out, baseline))
        files = write_files(report, out, say)
    if not options.json:
        _print(report, files)
    failed = [each for each in outcomes.values() if each.failed]
    if failed:
        say(f"{len(failed)} of {len(plan.cells)} runs failed; they are tried again by the same command")
    return exit_status(list(outcomes.values())), report


def _announce(plan: TablePlan, waiting: Sequence[Cell], workers: int) -> None:
    """Say how many runs there are, how long they take, and what differs from the paper."""
    from headwater.papers.scales import find

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


def _place(out: Path | None, table: PaperTable, scale: str, asked: str, *, alone: bool) -> Path:
    """The directory of a table; several tables get one each below `out`.

    Without `out` it is numbered; `asked` are the settings that make another run of it.
    """
    name = table.name if not table.name.endswith(".toml") else Path(table.name).stem
    if out is None:
        return directory_for(RUNS / "reproduce" / f"{name.replace('/', '-')}-{scale}", {"settings": asked})
    return out if alone else out / name.partition("/")[2]


def _print(report: TableReport, files: list[Path]) -> None:
    from headwater.papers.table_files import cell_text, gap_legend, gap_text, heading, legend

    results = report.results
    screen = console()
    for start in range(0, len(results.columns), WIDE):
        part = results.columns[start : start + WIDE]
        heads = [heading(results, column) for column in part]
        rows = [[row, *(cell_text(results.entries.get((row, column))) for column in part)] for row in results.rows]
        title = (results.plan.table.title or results.plan.table.name) if start == 0 else ""
        screen.print(table(["", *heads], rows, title=title, right=heads))
    screen.print(legend(results), style="dim")
    about = gap_legend(results)
    for start in range(0, len(results.columns), WIDE) if about else ():
        part = results.columns[start : start + WIDE]
        heads = [heading(results, column) for column in part]
        others = [row for row in results.rows if row != results.base]
        rows = [[row, *(gap_text(results, row, column) for column in part)] for row in others]
        screen.print(table(["", *heads], rows, title="" if start else f"Difference to {results.base}", right=heads))
    for sentence in about:
        screen.print(sentence, style="dim")
    for sentence in [*report.failures, *report.claims, *report.alike, *report.orders]:
        screen.print(sentence, markup=False)
    print_lines(*files)


def _list(source: str | None, *, json: bool) -> int:
    from headwater import papers

    names = papers.meant(source) if source else list(papers.names())
    rows = [{"name": name, "summary": papers.names().get(name, "")} for name in names]
    if json:
        as_json(rows)
    else:
        console().print(table(["name", "summary"], [[row["name"], row["summary"]] for row in rows]))
    return 0
