"""`headwater report`: HTML, PNG, CSV and Markdown from runs that are on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.compare import Target, check_target, print_summary
from headwater.cli.options import Json, Out, Quiet
from headwater.cli.show import as_json
from headwater.cli.show import out as console

Directories = Annotated[list[Path], typer.Argument(metavar="DIR …", show_default=False)]


def report(
    directories: Directories, target: Target = None, out: Out = None, quiet: Quiet = False, json: Json = False
) -> None:
    """Write a report from runs.

    A page, a picture and tables, of one run or of many. A DIR may also be that of a comparison.
    """
    from headwater.cli.directory import check_path
    from headwater.cli.progress import status
    from headwater.report import export
    from headwater.report.runs import find
    from headwater.report.tables import dicts, summary

    check_target(target)
    runs = find(directories)
    out = out or (directories[0] / "report" if len(directories) == 1 else Path("runs") / "report")
    check_path(out)
    found = summary(runs, target)
    with status("writing the report …", quiet):
        files = export(directories, out, target=target)
    if json:
        as_json({"files": [str(file) for file in files], "rows": dicts(found)})
        return
    print_summary(found)
    for file in files:
        console().print(str(file), soft_wrap=True)
