"""`headwater watch`: the report of runs as a live page in the browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.options import Options, Target, takes
from headwater.cli.run import INTERRUPTED
from headwater.cli.terminal import console, say

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
Port = Annotated[int, typer.Option("--port", metavar="N", help="Port of the page; 0 for any free one.")]


@takes("target quiet")
def watch(options: Options, directory: Directory, port: Port = 0, target: Target = None) -> int:
    """Show runs as a page that renews itself.

    DIR is the directory of a run, or of several. The page is the report, served on this machine only, at an address
    that nobody can guess. Ctrl-C ends it, and no run with it.
    """
    from headwater.report.live import RunsPage
    from headwater.report.method_table import check_target
    from headwater.report.runs import find

    check_target(target, "--target")
    find(directory)
    server = RunsPage(directory, port, target)
    console().print(server.address, markup=False, soft_wrap=True)
    if not options.quiet:
        say("open this address in a browser of this machine; Ctrl-C ends it, and no run with it")
    sys.stdout.flush()
    try:
        server.serve()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        server.close()
    return 0
